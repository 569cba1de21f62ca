import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { CallHead } from "../chat/CallHead";
import { giveResults } from "../chat/session";
import { changeConversation, conversation, settings, shown } from "../chat/state";
import type { AnswerMessage, ToolCall } from "../chat/tree";
import { TEXT } from "../text";
import { areAllowed, argumentsIn, keyOf, MOST_ROUNDS, offered, roundsIn, type ServerTool, toolOf } from "./offered";
import { changeCall, runAll, runCall } from "./rounds";
import { callsRunning, stopCalls } from "./running";
import "./tools.css";

export { runAll } from "./rounds";

/** The calls of an answer that wait: the user runs, edits or declines each, and sends the results. */
export function ToolCalls({ message }: { message: AnswerMessage }) {
  /** What the user has typed instead of the results, by place. */
  const typed = useSignal<Record<number, string>>({});
  const tools = offered(settings.value);
  const run = callsRunning.value.get(message.conversation);
  const isRunning = run?.answer === message.id;
  const isComplete = message.calls.every((call, place) => call.result !== undefined || typed.value[place]?.trim());
  const rounds = roundsIn(shown.value.map(({ message }) => message));
  const isAtLimit = rounds >= MOST_ROUNDS && areAllowed(message, tools, conversation.value?.allowed ?? []);
  return (
    <form
      class="calls"
      onSubmit={(event) => {
        event.preventDefault();
        if (!isComplete || isRunning) return;
        const results = message.calls.map((call, place) => typed.value[place] ?? call.result ?? "");
        void giveResults(message, results);
      }}
    >
      {!isRunning && !isComplete && (
        <p class="small quiet" role="status">
          {isAtLimit ? TEXT.tools.limit(rounds) : TEXT.tools.asks(message.calls.length)}
        </p>
      )}
      {message.calls.map((call, place) => (
        <Call
          key={call.id}
          message={message}
          place={place}
          call={call}
          tool={toolOf(tools, call)}
          isRunning={isRunning}
          result={typed.value[place] ?? call.result ?? null}
          onType={(text) => (typed.value = { ...typed.value, [place]: text })}
        />
      ))}
      <div class="actions">
        <button type="submit" class="primary" disabled={!isComplete || isRunning}>
          {TEXT.message.sendResults(message.calls.length)}
        </button>
      </div>
    </form>
  );
}

interface Props {
  message: AnswerMessage;
  place: number;
  call: ToolCall;
  /** Null: no tool of the server, so that the user enters the result. */
  tool: ServerTool | null;
  /** Whether a call of this answer runs. */
  isRunning: boolean;
  result: string | null;
  onType: (text: string) => void;
}

function Call({ message, place, call, tool, isRunning, result, onType }: Props) {
  const box = useRef<HTMLFieldSetElement>(null);
  const field = useRef<HTMLTextAreaElement>(null);
  /** The arguments while the user edits them. */
  const edited = useSignal<string | null>(null);
  const isInvalid = edited.value !== null && argumentsIn(edited.value) === null;
  const runs = isRunning && call.begun === true;
  // The button that was pressed is gone.
  useEffect(() => {
    if (call.result !== undefined && box.current === document.activeElement) field.current?.focus();
  }, [call.result]);

  async function changed(): Promise<AnswerMessage> {
    const text = edited.value;
    edited.value = null;
    box.current?.focus();
    if (text === null || text === call.arguments) return message;
    return changeCall(message, place, { arguments: text, written: call.written ?? call.arguments });
  }

  async function allow(allowed: ServerTool) {
    const known = conversation.value?.allowed ?? [];
    changeConversation({ allowed: [...new Set([...known, keyOf(allowed)])] });
    const now = await changed();
    if (areAllowed(now, offered(settings.value), conversation.value?.allowed ?? [])) await runAll(now);
    else await runCall(now, place);
  }

  async function decline() {
    box.current?.focus();
    edited.value = null;
    await changeCall(message, place, { result: TEXT.tools.declined, failed: false });
  }

  return (
    <fieldset class="call" ref={box} tabIndex={-1}>
      <legend class="hidden-visually">{TEXT.tools.callOf(call.name)}</legend>
      <CallHead call={call} from={tool?.server ?? null} hidesArguments={edited.value !== null} />
      {edited.value !== null && (
        <label>
          <span class="small quiet">{TEXT.tools.editArguments(call.name)}</span>
          <textarea
            class="mono"
            rows={4}
            spellcheck={false}
            value={edited.value}
            aria-invalid={isInvalid}
            onInput={({ currentTarget }) => (edited.value = currentTarget.value)}
          />
          {isInvalid && (
            <span class="small problem" role="alert">
              {TEXT.tools.notArguments}
            </span>
          )}
        </label>
      )}
      {runs && (
        <p class="waiting quiet" role="status">
          <span class="dot" /> {TEXT.tools.running(call.name)}{" "}
          <button type="button" onClick={() => stopCalls(message.conversation)}>
            {TEXT.app.stop}
          </button>
        </p>
      )}
      {!runs && call.begun && (
        <p class="small quiet" role="status">
          {TEXT.tools.interrupted}
        </p>
      )}
      {!runs && tool && call.result === undefined && (
        <div class="call-actions">
          <button
            type="button"
            class="primary"
            disabled={isRunning || isInvalid}
            onClick={() => void changed().then((now) => runCall(now, place))}
          >
            {TEXT.tools.run}
          </button>
          <button
            type="button"
            disabled={isRunning}
            aria-pressed={edited.value !== null}
            onClick={() => (edited.value = edited.value === null ? pretty(call.arguments) : null)}
          >
            {TEXT.tools.edit}
          </button>
          <button type="button" disabled={isRunning} onClick={() => void decline()}>
            {TEXT.tools.decline}
          </button>
          <button type="button" disabled={isRunning || isInvalid} onClick={() => void allow(tool)}>
            {TEXT.tools.always}
          </button>
        </div>
      )}
      {!runs && (call.result !== undefined || !tool) && (
        <label>
          <span class={call.failed ? "small problem" : "small quiet"}>
            {call.failed ? TEXT.tools.failed(call.name) : TEXT.message.resultOf(call.name)}
          </span>
          <textarea
            ref={field}
            rows={Math.min(12, Math.max(2, (result ?? "").split("\n").length))}
            value={result ?? ""}
            onInput={({ currentTarget }) => onType(currentTarget.value)}
          />
        </label>
      )}
    </fieldset>
  );
}

function pretty(text: string): string {
  const found = argumentsIn(text);
  return found ? JSON.stringify(found, null, 2) : text;
}
