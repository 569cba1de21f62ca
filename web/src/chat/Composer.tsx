import "./composer.css";
import { untracked, useSignal, useSignalEffect } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { showShortcuts } from "../app/Shortcuts";
import { MOST_FILES, notAccepted } from "../attachments/limits";
import { Media } from "../attachments/Media";
import { read } from "../attachments/read";
import { isMedia } from "../attachments/types";
import { obstacle } from "../models/watching";
import { TEXT } from "../text";
import { Icon, IconButton } from "../ui/Icon";
import { changeDraft, draftOf, NEW } from "./drafts";
import { focusComposer, SEARCH_ID, settingsOpen } from "./panels";
import { conversation, isBusy, model, send, settings, settingsProblems, shown, stop, wanted } from "./session";
import { inForce } from "./settings";

/** A message that is sent later: when the models are known, or when the answer before it is complete. */
interface Queued {
  place: string;
  behind: string | null;
}

/** The box for the user's message. Each conversation has its own draft. */
export function Composer() {
  const field = useRef<HTMLTextAreaElement>(null);
  const chooser = useRef<HTMLInputElement>(null);
  const problems = useSignal<string[]>([]);
  const queued = useSignal<Queued | null>(null);
  const dragging = useSignal(false);
  /** The file that is being read. */
  const reading = useSignal<string | null>(null);
  const place = wanted.value ?? NEW;
  const { text, files } = draftOf(place);
  const busy = isBusy.value;
  const ready = text.trim() !== "" || files.length > 0;
  const hasTried = useSignal(false);
  const unsuited = model.value ? notAccepted(files, model.value) : [];
  const settingsAreWrong = hasTried.value && Object.keys(settingsProblems.value).length > 0;

  useEffect(() => {
    problems.value = [];
    // On a phone the keyboard would cover the conversation.
    const isSearching = document.activeElement?.id === SEARCH_ID;
    if (!isSearching && (!isTouch() || place === NEW)) field.current?.focus();
  }, [place]);

  useSignalEffect(() => {
    const waiting = queued.value;
    if (waiting === null) return;
    const isElsewhere = waiting.place !== (wanted.value ?? NEW);
    if (isElsewhere || (waiting.behind === null && obstacle.value)) queued.value = null;
    else if (!isBusy.value && model.value) {
      queued.value = null;
      // After an answer that was stopped or failed, or whose calls wait, the user decides.
      const before = waiting.behind === null ? null : shown.peek().at(-1)?.message;
      const isComplete = before?.role === "assistant" && before.finish !== null && before.finish !== "tool_calls";
      if (before === null || isComplete) untracked(submit);
    }
  });

  // A file that is dropped beside the box must not replace the page.
  useEffect(() => {
    function over(event: DragEvent) {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      dragging.value = true;
    }
    function left(event: DragEvent) {
      if (event.relatedTarget === null) dragging.value = false;
    }
    function dropped(event: DragEvent) {
      if (event.defaultPrevented || !event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      dragging.value = false;
      void attach([...event.dataTransfer.files]);
    }
    addEventListener("dragover", over);
    addEventListener("dragleave", left);
    addEventListener("drop", dropped);
    return () => {
      removeEventListener("dragover", over);
      removeEventListener("dragleave", left);
      removeEventListener("drop", dropped);
    };
  }, []);

  async function attach(chosen: File[]) {
    const to = wanted.peek() ?? NEW;
    const refused: string[] = [];
    problems.value = refused;
    for (const file of chosen) {
      reading.value = file.name;
      const attached = await read(file);
      const { files } = untracked(() => draftOf(to));
      if (typeof attached === "string") refused.push(attached);
      else if (files.length >= MOST_FILES) refused.push(TEXT.attachments.tooMany(file.name, MOST_FILES));
      else changeDraft(to, { files: [...files, { ...attached, name: distinct(attached.name, files) }] });
    }
    reading.value = null;
    problems.value = refused;
  }

  function submit() {
    const place = wanted.value ?? NEW;
    const { text, files } = draftOf(place);
    if (text.trim() === "" && files.length === 0) return;
    // It is still loading.
    if (place !== (conversation.value?.id ?? NEW)) return;
    problems.value = [];
    if (isBusy.value) queued.value = { place, behind: shown.value.at(-1)?.message.id ?? null };
    else if (obstacle.value) problems.value = [obstacle.value.text];
    else if (!model.value) queued.value = { place, behind: null };
    // The text beside the files says why.
    else if (notAccepted(files, model.value).length > 0 || reading.value) return;
    else if (Object.keys(settingsProblems.value).length > 0) {
      hasTried.value = true;
      settingsOpen.value = true;
    } else {
      hasTried.value = false;
      changeDraft(place, { text: "", files: [] });
      void send(text.trim(), files);
      focusComposer();
    }
  }

  function pressed(event: KeyboardEvent) {
    // The keyboard of a phone has no Shift+Enter.
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !isTouch()) {
      event.preventDefault();
      submit();
    } else if (event.key === "Escape" && queued.value) {
      event.preventDefault();
      queued.value = null;
    } else if (event.key === "ArrowUp" && text === "" && shown.value.length > 0) {
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
    >
      {(problems.value.length > 0 || unsuited.length > 0 || settingsAreWrong) && (
        <div class="problem small" role="alert">
          {[...problems.value, ...unsuited].map((problem) => (
            <p key={problem}>{problem}</p>
          ))}
          {settingsAreWrong && <p>{TEXT.composer.settingsInvalid}</p>}
        </div>
      )}
      {reading.value && (
        <p class="queued small quiet" role="status">
          {TEXT.attachments.reading(reading.value)}
        </p>
      )}
      {queued.value && (
        <p class="queued small quiet" role="status">
          {queued.value.behind === null ? TEXT.composer.queuedForModels : TEXT.composer.queuedForAnswer}
          <button type="button" class="plain small" onClick={() => (queued.value = null)}>
            {TEXT.app.cancel}
          </button>
        </p>
      )}
      <div class="composer-box">
        {files.length > 0 && (
          <ul class="files" aria-label={TEXT.attachments.attached}>
            {files.map((file) => (
              <li key={file.name}>
                {isMedia(file) ? <Media file={file} /> : file.name}
                <IconButton
                  icon="close"
                  label={TEXT.attachments.remove(file.name)}
                  onClick={() => changeDraft(place, { files: files.filter((other) => other !== file) })}
                />
              </li>
            ))}
          </ul>
        )}
        <textarea
          id="composer"
          ref={field}
          rows={1}
          aria-label={TEXT.composer.label}
          placeholder={TEXT.composer.placeholder(model.value?.id)}
          value={text}
          enterkeyhint={isTouch() ? "enter" : "send"}
          // Not `place`: another conversation may have been opened since this was rendered.
          onInput={({ currentTarget }) => changeDraft(wanted.peek() ?? NEW, { text: currentTarget.value })}
          onKeyDown={pressed}
          onPaste={(event) => {
            const pasted = [...(event.clipboardData?.files ?? [])];
            if (pasted.length === 0) return;
            event.preventDefault();
            void attach(pasted);
          }}
        />
        <div class="composer-foot">
          <IconButton icon="attach" label={TEXT.attachments.attach} onClick={() => chooser.current?.click()} />
          <input
            ref={chooser}
            type="file"
            multiple
            hidden
            aria-label={TEXT.attachments.files}
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
          <ContextGauge />
          {busy && ready && isTouch() && (
            <button type="submit" class="round" aria-label={TEXT.composer.sendLater}>
              <Icon name="send" />
            </button>
          )}
          {/* Keys: one button that becomes the other during a click would send. */}
          {busy ? (
            <button
              key="stop"
              type="button"
              class="primary round"
              aria-label={TEXT.app.stop}
              title={TEXT.composer.stopHint}
              onClick={stop}
            >
              <Icon name="stop" />
            </button>
          ) : (
            <button
              key="send"
              type="submit"
              class="primary round"
              aria-label={TEXT.composer.send}
              title={TEXT.composer.sendHint}
              disabled={!ready}
            >
              <Icon name="send" />
            </button>
          )}
        </div>
      </div>
      <p class="hint small quiet">
        {TEXT.composer.keys}
        <button type="button" class="plain small" onClick={() => (showShortcuts.value = true)}>
          {TEXT.shortcuts.title}
        </button>
      </p>
    </form>
  );
}

/** Names are keys, and pasted pictures all have the same one. */
function distinct(name: string, others: { name: string }[]): string {
  const taken = new Set(others.map((other) => other.name));
  const dot = name.lastIndexOf(".");
  const [stem, ending] = dot > 0 ? [name.slice(0, dot), name.slice(dot)] : [name, ""];
  let found = name;
  for (let number = 2; taken.has(found); number++) found = `${stem} ${number}${ending}`;
  return found;
}

/** How much of the model's context the conversation takes, after its last answer. */
function ContextGauge() {
  const size = model.value?.context;
  const last = shown.value.filter(({ message }) => message.role === "assistant").at(-1)?.message;
  const counts = last?.role === "assistant" ? last.statistics : null;
  if (!size || !counts) return null;
  const used = counts.promptTokens + counts.answerTokens;
  const label = TEXT.composer.context(used.toLocaleString("en"), size.toLocaleString("en"));
  return (
    <meter
      class="gauge"
      min={0}
      max={size}
      low={0.7 * size}
      high={0.9 * size}
      optimum={0}
      value={used}
      title={label}
      aria-label={label}
    />
  );
}

/** Whether the user types on a screen. */
function isTouch(): boolean {
  return matchMedia("(pointer: coarse)").matches;
}
