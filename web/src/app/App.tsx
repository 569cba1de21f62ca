import { Chat } from "../chat/Chat";
import { Live } from "../live/Live";
import { Playground } from "../playground/Playground";
import { KeyDialog } from "./KeyDialog";
import { href, route, type View } from "./route";

const VIEWS: { view: View; name: string }[] = [
  { view: "chat", name: "Chat" },
  { view: "live", name: "Live" },
  { view: "playground", name: "Playground" },
];

export function App() {
  const { view } = route.value;
  return (
    <>
      <header class="bar">
        <a class="brand" href={href("chat")}>
          Paddock
        </a>
        <nav aria-label="Views">
          {VIEWS.map(({ view: name, name: label }) => (
            <a key={name} href={href(name)} aria-current={name === view ? "page" : undefined}>
              {label}
            </a>
          ))}
        </nav>
      </header>
      <main id="main" class={`view view-${view}`}>
        {view === "chat" && <Chat />}
        {view === "live" && <Live />}
        {view === "playground" && <Playground />}
      </main>
      <KeyDialog />
    </>
  );
}
