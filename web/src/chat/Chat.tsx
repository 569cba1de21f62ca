import { useEffect } from "preact/hooks";
import { onKeys } from "../app/keys";
import { route } from "../app/route";
import { HistoryPanel } from "../history/HistoryPanel";
import { refresh, storageProblem } from "../history/store";
import { ModelPicker, toggleModels } from "../models/ModelPicker";
import { connection } from "../models/watching";
import { IconButton } from "../ui/Icon";
import { later } from "../ui/later";
import "./chat.css";
import { TEXT } from "../text";
import { Composer } from "./Composer";
import { historyOpen, newChat, settingsOpen } from "./panels";
import { conversation, isBusy, open, stop } from "./session";
import { Thread } from "./Thread";

const SettingsDialog = later(async () => (await import("../settings/SettingsDialog")).SettingsDialog);

export function Chat() {
  const { id } = route.value;
  useEffect(() => void refresh(), []);
  useEffect(() => {
    void open(id);
    historyOpen.value = false;
  }, [id]);
  const title = conversation.value?.title ?? null;
  useEffect(() => {
    document.title = TEXT.chat.title(title);
    return () => {
      document.title = TEXT.chat.title(null);
    };
  }, [title]);
  useEffect(
    () =>
      onKeys({
        "mod+shift+o": newChat,
        "mod+/": toggleModels,
        "mod+.": () => (settingsOpen.value = true),
      }),
    [],
  );
  useEffect(() => {
    function escaped(event: KeyboardEvent) {
      // Esc closes an open panel before it stops an answer.
      if (event.key !== "Escape" || event.defaultPrevented) return;
      if (document.querySelector("dialog[open], :popover-open")) return;
      if (historyOpen.value) historyOpen.value = false;
      else if (isBusy.value) stop();
    }
    addEventListener("keydown", escaped);
    return () => removeEventListener("keydown", escaped);
  }, []);

  return (
    <div class="chat" data-history={historyOpen.value ? "open" : undefined}>
      <HistoryPanel onClose={() => (historyOpen.value = false)} />
      {historyOpen.value && (
        <button
          type="button"
          class="curtain"
          aria-label={TEXT.history.close}
          onClick={() => (historyOpen.value = false)}
        />
      )}
      <section class="conversation" aria-label={TEXT.chat.label}>
        <header class="conversation-head">
          <span class="phone-only">
            <IconButton icon="menu" label={TEXT.history.label} onClick={() => (historyOpen.value = true)} />
          </span>
          <h1 class="conversation-title">{conversation.value?.title ?? TEXT.chat.newChat}</h1>
          <ModelPicker />
          <IconButton icon="sliders" label={TEXT.settings.title} onClick={() => (settingsOpen.value = true)} />
        </header>
        <Banners />
        <Thread />
        <Composer />
      </section>
      {settingsOpen.value && <SettingsDialog onClose={() => (settingsOpen.value = false)} />}
    </div>
  );
}

function Banners() {
  const { problem } = connection.value;
  return (
    <>
      {problem && (
        <p class="banner" role="status">
          {problem} <span class="quiet">{TEXT.chat.historyReadable}</span>
        </p>
      )}
      {storageProblem.value && (
        <p class="banner" role="status">
          {storageProblem.value}
        </p>
      )}
    </>
  );
}
