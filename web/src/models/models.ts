/** The server's models and how they are, from its list and its events. Looking wakes none of them. */

export type ModelState = "unloaded" | "loading" | "loaded" | "unloading" | "failed";

/** What a model is made for. */
export type Kind = "generation" | "embedding" | "reranking";

export interface Model {
  id: string;
  /** Null where nobody knows before it is loaded. */
  kind: Kind | null;
  state: ModelState;
  /** How far its load has come, from 0 to 1. */
  progress: number | null;
  /** Why it cannot be loaded, or could not. */
  reason: string | null;
  quantization: string | null;
  /** Bytes of its file. */
  size: number | null;
  parameters: number | null;
  /** Tokens that a conversation may have. */
  context: number | null;
}

export interface Card {
  id: string;
  kind: Kind | null;
  status: { value: Exclude<ModelState, "failed">; problem?: string };
  meta: {
    quantization: string | null;
    size: number | null;
    n_params: number | null;
    n_ctx: number | null;
    n_ctx_train: number | null;
  };
}

export interface StatusEvent {
  model: string;
  data: { status: Exclude<ModelState, "failed">; progress?: { value: number } };
}

/** The models as the server lists them. What is known of a failure stays known until the model is loaded. */
export function fromCards(cards: Card[], before: Model[] = []): Model[] {
  return cards.map(({ id, kind, status, meta }) => {
    const known = before.find((model) => model.id === id);
    return settled({
      id,
      kind,
      state: status.value,
      progress: status.value === "loading" ? (known?.progress ?? 0) : null,
      reason: status.problem ?? known?.reason ?? null,
      quantization: meta.quantization,
      size: meta.size,
      parameters: meta.n_params,
      context: meta.n_ctx ?? meta.n_ctx_train,
    });
  });
}

/** Whether a model can do what it is wanted for, as far as that is known. */
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

/** The one to talk to: what was asked for if it is there, else one that is loaded, else the first that can be. */
export function preferred(models: Model[], wanted: string | null): Model | null {
  return (
    models.find(({ id }) => id === wanted) ??
    models.find(({ state }) => state === "loaded") ??
    models.find(({ state }) => state !== "failed") ??
    models[0] ??
    null
  );
}

export function inWords({ state, progress }: Model): string {
  if (state === "loading") return progress ? `loading, ${Math.round(100 * progress)} %` : "loading";
  return { unloaded: "not loaded", loaded: "loaded", unloading: "leaving", failed: "failed" }[state];
}
