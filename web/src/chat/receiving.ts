/** Receives answers: shows them once per frame, saves them while they arrive, and reads on after a lost connection. */

import { type Signal, signal } from "@preact/signals";
import { ApiError, unreachable } from "../api/client";
import * as store from "../history/store";
import { loadFailed } from "../models/watching";
import { TEXT } from "../text";
import { AnswerBuilder, type Chunk, type Progress } from "./answer";
import { settingsProblems } from "./state";
import { follow, forget, knownStreams, type Start, streamOf, untilAborted } from "./streams";
import type { AnswerMessage } from "./tree";

export interface Writing {
  answer: AnswerMessage;
  progress: Progress | null;
}

export interface Running {
  now: Signal<Writing>;
  /** Stops the answer. */
  abort: AbortController;
  /** This page requested it. */
  isOurs: boolean;
}

/** The answers that this tab receives, by id. */
export const running = signal<ReadonlyMap<string, Running>>(new Map());

/** The answers that this page requested, also complete ones. */
export const requestedHere = new Set<string>();

const SAVED_EVERY_MS = 500;
/** How often a lost connection of one answer is opened again. */
const RECONNECTS = 20;

export function run(begun: AnswerMessage, isOurs: boolean): Running {
  const mine: Running = { now: signal({ answer: begun, progress: null }), abort: new AbortController(), isOurs };
  running.value = new Map(running.value).set(begun.id, mine);
  if (isOurs) requestedHere.add(begun.id);
  return mine;
}

export function ended(id: string): void {
  const left = new Map(running.value);
  left.delete(id);
  running.value = left;
}

/** Receive an answer. It is shown once per frame, and saved while it arrives. */
export async function receive({ now, abort, isOurs }: Running, start: Start): Promise<AnswerMessage> {
  const begun = now.value.answer;
  const asked = performance.now() / 1000;
  let builder = new AnswerBuilder(asked);
  const written = (): AnswerMessage => {
    const written = builder.written(performance.now() / 1000);
    const reasoning = written.reasoning || begun.reasoning;
    const content = (begun.continued ?? "") + written.content;
    const answer: AnswerMessage = { ...begun, ...written, content, reasoning };
    // The times are known only to the tab that requested it.
    return isOurs ? answer : { ...answer, firstToken: begun.firstToken, thought: begun.thought };
  };
  const frames = new Frames(() => {
    const answer = written();
    // A stream that is read again shows nothing until it is where it was.
    if (answer.content.length >= now.value.answer.content.length) now.value = { answer, progress: builder.progress };
  });
  const save = () => void store.save(written());
  const saving = isOurs ? setInterval(save, SAVED_EVERY_MS) : 0;
  if (isOurs) addEventListener("pagehide", save);
  const told = (chunk: Chunk) => {
    builder.feed(chunk, performance.now() / 1000);
    frames.ask();
  };
  try {
    if (isOurs) refuseMistakes();
    let isWhole = await untilAborted(follow(start, abort.signal, told), abort.signal);
    for (let tries = 0; !isWhole && tries < RECONNECTS && (await knownStreams([begun.id])).has(begun.id); tries++) {
      builder = new AnswerBuilder(asked);
      isWhole = await untilAborted(
        follow((signal) => streamOf(begun.id, signal), abort.signal, told),
        abort.signal,
      );
    }
    // If the server no longer knows it, another tab has stopped it.
    return { ...written(), open: false };
  } catch (error) {
    if (abort.signal.aborted) {
      forget(begun.id);
      return { ...written(), finish: null, open: false };
    }
    const problem = error instanceof ApiError ? error : unreachable();
    if (begun.model && ["model_load_failed", "out_of_memory"].includes(problem.code ?? "")) {
      loadFailed(begun.model, problem.message);
    }
    const { message, status, code, param, requestId } = problem;
    return { ...written(), finish: null, open: false, problem: { message, status, code, param, requestId } };
  } finally {
    frames.end();
    clearInterval(saving);
    removeEventListener("pagehide", save);
  }
}

/** An invalid setting must not be dropped: the answer would differ from what the user requested. */
function refuseMistakes(): void {
  for (const [field, problem] of Object.entries(settingsProblems.value)) {
    throw new ApiError(TEXT.message.settingsInvalid(problem), 0, null, field);
  }
}

/** Calls back at most once per frame. In the background, which has no frames, a timer calls. */
class Frames {
  private asked = false;
  private ended = false;

  constructor(private readonly show: () => void) {}

  ask(): void {
    if (this.asked) return;
    this.asked = true;
    if (document.hidden) setTimeout(() => this.happen(), 250);
    else requestAnimationFrame(() => this.happen());
  }

  end(): void {
    this.ended = true;
  }

  private happen(): void {
    this.asked = false;
    if (!this.ended) this.show();
  }
}
