/** Keeps the list of models current while the page is visible, and requests loads and unloads. */

import { computed, effect, signal } from "@preact/signals";
import { ApiError, getEvents, getJson, postJson, unreachable } from "../api/client";
import { keysGiven } from "../api/key";
import { TEXT } from "../text";
import { type Card, fits, fromCards, type Model, type StatusEvent, withEvent, withFailure } from "./models";

export const models = signal<Model[]>([]);

/** The models that can chat. */
export const talkers = computed(() => models.value.filter((model) => fits(model, "generation")));

interface Connection {
  state: "connecting" | "open" | "lost" | "no key";
  problem: string | null;
}

/** Whether the server can be reached and accepts our key, or why not. */
export const connection = signal<Connection>({ state: "connecting", problem: null });

/** Why no message can be sent, and whether a key would help. Null while the list of models is loading. */
export const obstacle = computed<{ text: string; needsKey: boolean; noModel: boolean } | null>(() => {
  const { state, problem } = connection.value;
  if (state === "connecting" || talkers.value.some(({ broken }) => !broken)) return null;
  if (state === "no key") return { text: TEXT.models.keyRequired, needsKey: true, noModel: false };
  if (state === "lost") return { text: problem ?? "", needsKey: false, noModel: false };
  return { text: TEXT.models.noChatModelHere, needsKey: false, noModel: true };
});

/** Why the server refused to load or unload a model. Most keys have no permission. */
export const forbidden = signal<string | null>(null);

/** An event of `/models/sse`. Those of downloads go to admin keys. */
type ModelsEvent =
  | (StatusEvent & { event: "model_status" })
  | { event: "models_reload" | "model_remove" | "download_progress" | "download_finished" | "download_failed" };

const LONGEST_PAUSE_MS = 15_000;

/** A browser allows few connections to a host, so a hidden page has none. */
export function watchModels(): void {
  let watching: AbortController | null = null;
  function begin() {
    watching?.abort();
    watching = null;
    if (document.hidden) return;
    watching = new AbortController();
    void watch(watching.signal);
  }
  document.addEventListener("visibilitychange", begin);
  addEventListener("online", begin);
  addEventListener("offline", () => {
    connection.value = { state: "lost", problem: unreachable().message };
  });
  effect(() => {
    if (keysGiven.value >= 0) queueMicrotask(begin);
  });
}

async function watch(signal: AbortSignal): Promise<void> {
  for (let pause = 1_000; !signal.aborted; pause = Math.min(2 * pause, LONGEST_PAUSE_MS)) {
    try {
      await list(signal);
      connection.value = { state: "open", problem: null };
      pause = 500;
      for await (const { data } of getEvents("/models/sse", signal)) {
        const event: ModelsEvent = JSON.parse(data);
        if (event.event === "model_status") await happened(event, signal);
        else if (event.event === "models_reload" || event.event === "model_remove") await list(signal);
      }
      connection.value = { state: "lost", problem: TEXT.models.connectionClosed };
    } catch (error) {
      if (signal.aborted) return;
      const problem = error instanceof ApiError ? error : unreachable();
      const refused = problem.status === 401;
      connection.value = { state: refused ? "no key" : "lost", problem: problem.message };
      // Start again after a key is entered.
      if (refused) return;
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

async function list(signal?: AbortSignal): Promise<void> {
  models.value = fromCards((await getJson<{ data: Card[] }>("/models", signal)).data, models.value);
}

async function happened(event: StatusEvent, signal: AbortSignal): Promise<void> {
  const before = models.value.find(({ id }) => id === event.model);
  models.value = withEvent(models.value, event);
  if (!before || (event.data.status === "loaded" && before.state !== "loaded")) await list(signal);
  // The list says whether it failed, and why.
  else if (event.data.status === "unloaded" && before.state !== "unloaded") await list(signal);
}

/** The error of an answer that is about its model. */
export function loadFailed(id: string, reason: string): void {
  models.value = withFailure(models.value, id, reason);
}

export async function askFor(what: "load" | "unload", model: Model): Promise<void> {
  const before = models.value;
  // A load may fail before the event of its start arrives.
  if (what === "load") models.value = withEvent(before, { model: model.id, data: { status: "loading" } });
  try {
    await postJson(`/models/${what}`, { model: model.id });
    forbidden.value = null;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    models.value = before;
    if (error.status === 403) forbidden.value = TEXT.models.forbidden(what);
    else models.value = withFailure(before, model.id, error.message);
  }
}
