/** Which conversation runs calls of tools now: one call after the other. */

import { signal } from "@preact/signals";

export interface CallsRun {
  /** The id of the answer with the calls. */
  answer: string;
  abort: AbortController;
}

/** By conversation. */
export const callsRunning = signal<ReadonlyMap<string, CallsRun>>(new Map());

/** Null if calls of this conversation run already. */
export function beginCalls(conversation: string, answer: string): CallsRun | null {
  if (callsRunning.peek().has(conversation)) return null;
  const begun = { answer, abort: new AbortController() };
  callsRunning.value = new Map(callsRunning.peek()).set(conversation, begun);
  return begun;
}

/** They have ended, or the next answer begins. */
export function endCalls(conversation: string): void {
  const left = new Map(callsRunning.peek());
  if (left.delete(conversation)) callsRunning.value = left;
}

export function stopCalls(conversation: string): void {
  callsRunning.peek().get(conversation)?.abort.abort();
}
