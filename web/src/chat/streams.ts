/**
 * The streams of answers. The server keeps each one for a while under the id of its answer, so that it can be read
 * again after a reload or a lost connection, and by other tabs. So it must be told when an answer is to stop.
 */

import { errorOf, getEvents, post, postJson, remove, unreachable } from "../api/client";
import { type ServerEvent, serverEvents } from "../api/sse";
import type { Chunk } from "./answer";

/** Begins or continues a stream. */
export type Start = (signal: AbortSignal) => AsyncGenerator<ServerEvent>;

export async function* startStream(id: string, body: unknown, signal: AbortSignal): AsyncGenerator<ServerEvent> {
  const reading = new AbortController();
  // The server stops a request that it has begun to answer. Until then it must not lose the connection.
  let begun = false;
  signal.addEventListener("abort", () => begun && reading.abort());
  const response = await post("/v1/chat/completions", body, reading.signal, { "X-Conversation-Id": id });
  begun = true;
  if (signal.aborted) {
    reading.abort();
    forget(id);
    return;
  }
  yield* serverEvents(response);
}

export function streamOf(id: string, signal: AbortSignal): AsyncGenerator<ServerEvent> {
  return getEvents(`/v1/stream?conv_id=${encodeURIComponent(id)}&from=0`, signal);
}

/** The ids of those streams that the server still has. */
export async function knownStreams(ids: string[]): Promise<Set<string>> {
  const known = await postJson<{ conversation_id: string }[]>("/v1/streams/lookup", { conversation_ids: ids });
  return new Set(known.map(({ conversation_id }) => conversation_id));
}

/** Stop a stream. Nothing is to be done if that fails: then the answer is generated to its end. */
export function forget(id: string): void {
  remove(`/v1/stream?conv_id=${encodeURIComponent(id)}`).catch(() => undefined);
}

/** How long events are processed at once if they arrive faster than they can be shown. */
const PATIENCE_MS = 8;

/** Report the chunks of a stream. False if it ends before the answer is complete. */
export async function follow(start: Start, signal: AbortSignal, told: (chunk: Chunk) => void): Promise<boolean> {
  let until = performance.now() + PATIENCE_MS;
  let hasBegun = false;
  try {
    for await (const { event, data } of start(signal)) {
      hasBegun = true;
      if (performance.now() > until) {
        await new Promise((resolve) => setTimeout(resolve));
        until = performance.now() + PATIENCE_MS;
      }
      if (event === "error") throw errorOf(JSON.parse(data), 200);
      if (data === "[DONE]") return true;
      if (!signal.aborted) told(JSON.parse(data));
    }
  } catch (error) {
    // A browser reports a lost connection as a TypeError.
    if (!(error instanceof TypeError) || !hasBegun) throw error;
  }
  return false;
}

/** Do not wait longer than until `signal` is aborted. */
export function untilAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    signal.addEventListener("abort", () => reject(unreachable()), { once: true });
    work.then(resolve, reject);
  });
}
