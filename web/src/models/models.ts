/** The server's models and their states, from its list and its events. This loads no model. */

import type { MediaKind } from "../attachments/types";
import { TEXT } from "../text";

export type ModelState = "unloaded" | "loading" | "loaded" | "unloading" | "failed";

/** The kind of a model. */
export type Kind = "generation" | "embedding" | "reranking";

export interface Model {
  id: string;
  /** Null: unknown until it is loaded. */
  kind: Kind | null;
  state: ModelState;
  /** The progress of its load, from 0 to 1. */
  progress: number | null;
  /** Why it cannot be loaded, or why its load failed. */
  reason: string | null;
  /** Its file cannot be read: it is no use to try again. */
  broken: boolean;
  quantization: string | null;
  /** The size of its file in bytes. */
  size: number | null;
  parameters: number | null;
  /** The context size in tokens. */
  context: number | null;
  /** What it reads besides text. */
  media: MediaKind[];
  /** The server can delete its files. */
  removable: boolean;
}

export interface Card {
  id: string;
  kind: Kind | null;
  status: { value: Exclude<ModelState, "failed">; problem?: string; failed?: boolean };
  meta: {
    quantization: string | null;
    size: number | null;
    n_params: number | null;
    n_ctx: number | null;
    n_ctx_train: number | null;
  };
  architecture: { input_modalities: string[] };
  can_remove?: boolean;
}

export interface StatusEvent {
  model: string;
  event?: "model_status";
  data: { status: Exclude<ModelState, "failed">; progress?: { value: number } };
}

const MEDIA: MediaKind[] = ["image", "audio"];

/** The models as the server lists them, broken files last. */
export function fromCards(cards: Card[], before: Model[] = []): Model[] {
  const models = cards.map(({ id, kind, status, meta, architecture, can_remove }) => {
    const known = before.find((model) => model.id === id);
    return settled({
      id,
      kind,
      state: status.value,
      progress: status.value === "loading" ? (known?.progress ?? 0) : null,
      reason: status.problem ?? null,
      broken: status.problem !== undefined && status.failed !== true,
      quantization: meta.quantization,
      size: meta.size,
      parameters: meta.n_params,
      context: meta.n_ctx ?? meta.n_ctx_train,
      media: MEDIA.filter((medium) => architecture.input_modalities.includes(medium)),
      removable: can_remove === true,
    });
  });
  return [...models.filter(({ broken }) => !broken), ...models.filter(({ broken }) => broken)];
}

/** Whether a model supports a task, as far as that is known. */
export function fits({ kind }: Model, wanted: Kind): boolean {
  return kind === null || kind === wanted;
}

export function withEvent(models: Model[], { model, data }: StatusEvent): Model[] {
  return models.map((known) =>
    known.id === model ? settled({ ...known, state: data.status, progress: data.progress?.value ?? null }) : known,
  );
}

export function withFailure(models: Model[], id: string, reason: string | null): Model[] {
  return models.map((known) => (known.id === id ? settled({ ...known, reason: reason ?? known.reason }) : known));
}

function settled(model: Model): Model {
  if (model.state === "loaded" || model.state === "loading") return { ...model, reason: null };
  const out = model.state === "unloaded" || model.state === "failed";
  return { ...model, state: out ? (model.reason === null ? "unloaded" : "failed") : model.state };
}

/** The model to use: the selected one if it exists, else a loaded one, else one that can be loaded. No broken file. */
export function preferred(all: Model[], wanted: string | null): Model | null {
  const models = all.filter(({ broken }) => !broken);
  return (
    models.find(({ id }) => id === wanted) ??
    models.find(({ state }) => state === "loaded") ??
    models.find(({ state }) => state !== "failed") ??
    models[0] ??
    null
  );
}

/** `7.6B`, `135M`, `0.3M`. */
export function parametersInWords(count: number): string {
  if (count >= 1e9) return `${(count / 1e9).toFixed(1)}B`;
  return count >= 1e7
    ? `${Math.round(count / 1e6)}M`
    : count >= 1e5
      ? `${(count / 1e6).toFixed(1)}M`
      : `${Math.round(count / 1e3)}K`;
}

export function inWords({ state, progress }: Model): string {
  if (state === "loading") return TEXT.models.loading(progress ? Math.round(100 * progress) : null);
  return TEXT.models.states[state];
}
