import { useEffect } from "preact/hooks";
import { Chat } from "../chat/Chat";
import { searchHistory } from "../chat/panels";
import { Live } from "../live/Live";
import { Playground } from "../playground/Playground";
import { TEXT } from "../text";
import { Icon, IconButton, type IconName } from "../ui/Icon";
import { later } from "../ui/later";
import { Notices } from "../ui/notices";
import { nextTheme, type Theme, theme } from "../ui/theme";
import { KeyDialog } from "./KeyDialog";
import { onKeys } from "./keys";
import { backTo, href, route, type View } from "./route";
import { Shortcuts, showShortcuts } from "./Shortcuts";

const Manage = later(async () => (await import("../manage/Manage")).Manage);

const VIEWS: { view: View; name: string }[] = [
  { view: "chat", name: TEXT.app.views.chat },
  { view: "live", name: TEXT.app.views.live },
  { view: "playground", name: TEXT.app.views.playground },
  { view: "models", name: TEXT.app.views.models },
];
const THEMES: Record<Theme, { icon: IconName; label: string }> = {
  system: { icon: "screen", label: TEXT.app.theme.system },
  light: { icon: "sun", label: TEXT.app.theme.light },
  dark: { icon: "moon", label: TEXT.app.theme.dark },
};

function openShortcuts(): void {
  showShortcuts.value = true;
}

/** The history is part of the chat. */
function searchFromAnywhere(): void {
  if (route.peek().view !== "chat") location.hash = backTo("chat");
  searchHistory();
}

export function App() {
  const { view } = route.value;
  useEffect(() => onKeys({ "?": openShortcuts, "mod+shift+?": openShortcuts, "mod+k": searchFromAnywhere }), []);
  return (
    <>
      <header class="bar">
        <a class="brand" href={href("chat")} aria-label="Paddock">
          <Mark /> <span>Paddock</span>
        </a>
        <nav aria-label={TEXT.app.viewsLabel}>
          {VIEWS.map(({ view: name, name: label }) => (
            <a key={name} href={backTo(name)} aria-current={name === view ? "page" : undefined}>
              {label}
            </a>
          ))}
        </nav>
        <div class="bar-end">
          <IconButton {...THEMES[theme.value]} onClick={nextTheme} />
          <button
            type="button"
            class="plain icon-button shortcuts-button"
            aria-label={TEXT.shortcuts.title}
            title={TEXT.shortcuts.title}
            onClick={() => (showShortcuts.value = true)}
          >
            <Icon name="question" />
          </button>
        </div>
      </header>
      <main id="main" class={`view view-${view}`}>
        {view === "chat" && <Chat />}
        {view === "live" && <Live />}
        {view === "playground" && <Playground />}
        {view === "models" && <Manage />}
      </main>
      <Notices />
      {showShortcuts.value && <Shortcuts />}
      <KeyDialog />
    </>
  );
}

function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="7" />
      <path d="M4 12h24M4 20h24M9 7v18M23 7v18" />
    </svg>
  );
}
