import "./composer.css";
import { untracked, useComputed, useSignal, useSignalEffect } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Icon, IconButton } from "../ui/Icon";
import { MOST_FILES, textOf } from "./files";
import { focusComposer, settingsOpen } from "./panels";
import { atWork, conversation, model, send, settings, settingsProblems, shown, stop } from "./session";
import { inForce } from "./settings";
import type { Attachment } from "./tree";

/** The box for the user's message. */
export function Composer() {
  const field = useRef<HTMLTextAreaElement>(null);
  const chooser = useRef<HTMLInputElement>(null);
  const text = useSignal("");
  const files = useSignal<Attachment[]>([]);
  const problem = useSignal<string | null>(null);
  const early = useSignal(false);
  const dragging = useSignal(false);
  const id = conversation.value?.id ?? null;
  const busy = atWork.value !== null;
  const ready = useComputed(() => text.value.trim() !== "" || files.value.length > 0);

  useEffect(() => {
    // On a phone the keyboard would cover the conversation.
    if (matchMedia("(pointer: fine)").matches || id === null) field.current?.focus();
  }, [id]);

  // A message that was entered before a model was ready is sent when one is ready.
  useSignalEffect(() => {
    if (!early.value || !model.value) return;
    early.value = false;
    untracked(submit);
  });

  async function attach(chosen: Iterable<File>) {
    problem.value = null;
    for (const file of chosen) {
      const read = await textOf(file);
      if (typeof read === "string") problem.value = read;
      else if (files.value.length >= MOST_FILES) problem.value = `At most ${MOST_FILES} files can be attached.`;
      else files.value = [...files.value, read];
    }
  }

  function submit() {
    if (busy || !ready.value) return;
    if (!model.value) {
      early.value = true;
      problem.value = "The list of models is loading. The message is sent when it is complete.";
      return;
    }
    if (Object.keys(settingsProblems.value).length > 0) {
      problem.value = "The settings are invalid.";
      settingsOpen.value = true;
      return;
    }
    problem.value = null;
    const [content, attachments] = [text.value.trim(), files.value];
    text.value = "";
    files.value = [];
    void send(content, attachments);
    focusComposer();
  }

  function pressed(event: KeyboardEvent) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    } else if (event.key === "ArrowUp" && text.value === "" && shown.value.length > 0) {
      event.preventDefault();
      [...document.querySelectorAll<HTMLElement>(".message-user [name=edit]")].at(-1)?.click();
    }
  }

  return (
    <form
      class="composer"
      data-dragging={dragging.value ? "yes" : undefined}
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
      onDragOver={(event) => {
        event.preventDefault();
        dragging.value = true;
      }}
      onDragLeave={() => (dragging.value = false)}
      onDrop={(event) => {
        event.preventDefault();
        dragging.value = false;
        void attach(event.dataTransfer?.files ?? []);
      }}
    >
      {problem.value && (
        <p class="problem small" role="alert">
          {problem.value}
        </p>
      )}
      <div class="composer-box">
        {files.value.length > 0 && (
          <ul class="files" aria-label="Attached files">
            {files.value.map((file) => (
              <li key={file.name}>
                {file.name}
                <IconButton
                  icon="close"
                  label={`Remove ${file.name}`}
                  onClick={() => (files.value = files.value.filter((other) => other !== file))}
                />
              </li>
            ))}
          </ul>
        )}
        <textarea
          id="composer"
          ref={field}
          rows={1}
          aria-label="Message"
          placeholder={model.value ? `Message ${model.value.id}` : "Message"}
          value={text.value}
          onInput={({ currentTarget }) => (text.value = currentTarget.value)}
          onKeyDown={pressed}
          onPaste={(event) => {
            const pasted = [...(event.clipboardData?.files ?? [])];
            if (pasted.length === 0) return;
            event.preventDefault();
            void attach(pasted);
          }}
        />
        <div class="composer-foot">
          <IconButton icon="attach" label="Attach a text file" onClick={() => chooser.current?.click()} />
          <input
            ref={chooser}
            type="file"
            multiple
            hidden
            aria-label="Text files"
            onChange={({ currentTarget }) => {
              void attach([...(currentTarget.files ?? [])]);
              currentTarget.value = "";
            }}
          />
          <div class="in-force">
            {inForce(settings.value).map((words) => (
              <button key={words} type="button" class="chip small" onClick={() => (settingsOpen.value = true)}>
                {words}
              </button>
            ))}
          </div>
          {busy ? (
            <button type="button" class="primary round" aria-label="Stop" title="Stop (Esc)" onClick={stop}>
              <Icon name="stop" />
            </button>
          ) : (
            <button type="submit" class="primary round" aria-label="Send" title="Send (Enter)" disabled={!ready.value}>
              <Icon name="send" />
            </button>
          )}
        </div>
      </div>
      <p class="hint small quiet">Enter sends · Shift+Enter starts a new line · ? shows all keys</p>
    </form>
  );
}
