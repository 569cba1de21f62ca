/** The columns of a comparison: which model, with which settings, and what has come of it. */

import { type Signal, signal } from "@preact/signals";
import { ApiError, errorOf, postEvents, unreachable } from "../api/client";
import { AnswerBuilder, type Written } from "../chat/answer";
import { requestBeside } from "../chat/session";
import type { AnswerMessage } from "../chat/tree";
import { type Choice, changes } from "./choice";

export interface Column {
  id: number;
  choice: Signal<Choice>;
  written: Signal<Written | null>;
  problem: Signal<string | null>;
  /** Stops the answer; null: it is not running. */
  running: Signal<AbortController | null>;
}

let last = 0;

export function newColumn(choice: Choice): Column {
  return {
    id: ++last,
    choice: signal(choice),
    written: signal(null),
    problem: signal(null),
    running: signal(null),
  };
}

/** Answer the question of `message` once more, in this column. */
export async function run(column: Column, message: AnswerMessage, deterministic: boolean): Promise<void> {
  column.running.value?.abort();
  const abort = new AbortController();
  column.running.value = abort;
  column.problem.value = null;
  column.written.value = null;
  const now = () => performance.now() / 1000;
  const builder = new AnswerBuilder(now());
  let isAsked = false;
  const show = () => {
    isAsked = false;
    if (!abort.signal.aborted) column.written.value = builder.written(now());
  };
  try {
    const { model } = column.choice.value;
    const body = await requestBeside(message, model, changes(column.choice.value, deterministic));
    for await (const { event, data } of postEvents("/v1/chat/completions", body, abort.signal)) {
      if (event === "error") throw errorOf(JSON.parse(data), 200);
      if (data === "[DONE]") break;
      builder.feed(JSON.parse(data), now());
      if (!isAsked) requestAnimationFrame(show);
      isAsked = true;
    }
  } catch (error) {
    if (!abort.signal.aborted) column.problem.value = (error instanceof ApiError ? error : unreachable()).message;
  } finally {
    if (column.running.value === abort) {
      column.written.value = builder.written(now());
      column.running.value = null;
    }
  }
}
