import "./branch.css";
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { ApiError, postJson } from "../api/client";
import { branchFrom, edit, oneTokenRequest } from "../chat/session";
import type { AnswerMessage } from "../chat/tree";
import { shown, type TokenPiece } from "../playground/pieces";
import { TEXT } from "../text";
import { type Alternative, alternativesIn, type LogprobsAnswer, type Unit, unitsOf } from "./units";

/** An answer token by token. The selected token has alternatives, and each of them begins a new version. */
export function TokenBranches({ message, onDone }: { message: AnswerMessage; onDone: () => void }) {
  const text = useRef<HTMLDivElement>(null);
  const units = useSignal<Unit[]>([]);
  const at = useSignal<number | null>(null);
  const problem = useSignal<string | null>(null);

  useEffect(() => {
    const stop = new AbortController();
    tokensOf(message, stop.signal).then(
      (found) => (units.value = found),
      (error) => {
        if (!stop.signal.aborted) problem.value = wordsOf(error);
      },
    );
    return () => stop.abort();
  }, [message]);

  const chosen = at.value === null ? undefined : units.value[at.value];

  function onKeyDown(event: KeyboardEvent) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const now = [...(text.current?.children ?? [])].indexOf(document.activeElement as Element);
    (text.current?.children[now + step] as HTMLElement | undefined)?.focus();
  }

  return (
    <div class="branching">
      <p class="small quiet branching-head">
        {TEXT.branch.hint}
        <button type="button" class="plain small" onClick={onDone}>
          {TEXT.branch.done}
        </button>
      </p>
      <div
        ref={text}
        class="branch-text"
        role="toolbar"
        aria-label={TEXT.branch.tokens}
        tabIndex={-1}
        onKeyDown={onKeyDown}
      >
        {units.value.map((unit, place) => (
          <button
            type="button"
            key={unit.start}
            class="branch-token"
            aria-pressed={place === at.value}
            tabIndex={place === (at.value ?? 0) ? 0 : -1}
            onClick={() => (at.value = place)}
          >
            {unit.text.replaceAll("\n", "⏎\n")}
          </button>
        ))}
      </div>
      {problem.value && (
        <p class="problem" role="alert">
          {problem.value}
        </p>
      )}
      {chosen && <Alternatives key={chosen.start} message={message} unit={chosen} onDone={onDone} />}
    </div>
  );
}

function Alternatives({ message, unit, onDone }: { message: AnswerMessage; unit: Unit; onDone: () => void }) {
  const found = useSignal<Alternative[] | null>(null);
  const problem = useSignal<string | null>(null);
  const own = useSignal("");
  const before = message.content.slice(0, unit.start);

  useEffect(() => {
    const stop = new AbortController();
    alternativesAt(message, before, stop.signal).then(
      (alternatives) => (found.value = alternatives),
      (error) => {
        if (!stop.signal.aborted) problem.value = wordsOf(error);
      },
    );
    return () => stop.abort();
  }, []);

  function go(text: string) {
    onDone();
    // An answer that ends here is complete.
    void (text === "" ? edit(message, before) : branchFrom(message, before + text));
  }

  return (
    <section class="branch-panel" aria-label={TEXT.playground.alternatives(shown(unit.text).text)}>
      <h3 class="small">{TEXT.playground.alternatives(shown(unit.text).text)}</h3>
      {problem.value && (
        <p class="problem" role="alert">
          {problem.value}
        </p>
      )}
      {found.value === null && problem.value === null && <p class="quiet small">{TEXT.branch.asking}</p>}
      <ul class="branch-list">
        {found.value?.map((alternative) => (
          <li key={alternative.text}>
            <button
              type="button"
              class={alternative.text === unit.text ? "taken" : ""}
              disabled={alternative.isPartial || (alternative.text === "" && before === "")}
              onClick={() => go(alternative.text)}
            >
              <span class="literal">{alternative.text === "" ? TEXT.branch.end : shown(alternative.text).text}</span>
              <i aria-hidden="true" style={{ width: `${100 * alternative.probability}%` }} />
              <span class="branch-share">{(100 * alternative.probability).toFixed(1)}%</span>
            </button>
          </li>
        ))}
      </ul>
      <form
        class="branch-own"
        onSubmit={(event) => {
          event.preventDefault();
          if (own.value !== "") go(own.value);
        }}
      >
        <input
          aria-label={TEXT.branch.own}
          placeholder={TEXT.branch.ownExample(unit.text.startsWith(" "))}
          value={own.value}
          onInput={(event) => (own.value = event.currentTarget.value)}
        />
        <button type="submit" disabled={own.value === ""}>
          {TEXT.branch.go}
        </button>
      </form>
    </section>
  );
}

async function tokensOf({ content, model }: AnswerMessage, signal: AbortSignal): Promise<Unit[]> {
  const body = { ...(model !== null && { model }), content, with_pieces: true, parse_special: false };
  const { tokens } = await postJson<{ tokens: TokenPiece[] }>("/tokenize", body, signal);
  return unitsOf(content, tokens);
}

const MOST = 10;

async function alternativesAt(message: AnswerMessage, before: string, signal: AbortSignal): Promise<Alternative[]> {
  const body = await oneTokenRequest(message, before);
  const asked = { ...body, max_tokens: 1, logprobs: true, top_logprobs: MOST };
  return alternativesIn(await postJson<LogprobsAnswer>("/v1/chat/completions", asked, signal));
}

function wordsOf(error: unknown): string {
  return error instanceof ApiError ? error.message : TEXT.app.unreachable;
}
