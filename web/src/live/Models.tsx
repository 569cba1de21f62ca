import "./models.css";
import { useState } from "preact/hooks";
import { ApiError, postJson } from "../api/client";
import type { LiveModel } from "../api/live";
import { TEXT } from "../text";
import { Slots } from "./Slots";
import { state } from "./stream";
import { bytes, count, counted, duration, guesses, percent } from "./words";

/** Every model with its state. Models that use or need memory come first, the others are abbreviated. */
export function Models() {
  const models = state.value?.models ?? [];
  const there = models.filter((model) => model.state !== "unloaded" && !model.broken);
  const out = models.filter((model) => model.state === "unloaded");
  const broken = models.filter((model) => model.broken);
  return (
    <section class="panel live-models" aria-labelledby="models-title">
      <h2 id="models-title">{TEXT.models.label}</h2>
      {models.length === 0 && <p class="quiet">{TEXT.live.noModels}.</p>}
      {there.map((model) => (
        <article key={model.id} class="live-model" aria-label={model.id}>
          <ModelHead model={model} />
          {model.state === "loading" && <LoadProgress model={model} />}
          {model.state === "failed" && <p class="problem small">{model.reason}</p>}
          {model.slots.length > 0 && <Slots model={model} />}
          {model.waiting > 0 && (
            <p class="queue">
              <span class="queue-dots" aria-hidden="true">
                {Array.from({ length: Math.min(model.waiting, 24) }, (_, place) => (
                  <i key={place} />
                ))}
              </span>
              {TEXT.live.requestsWaiting(counted(model.waiting, "request"))}
            </p>
          )}
        </article>
      ))}
      {out.map((model) => (
        <article key={model.id} class="live-model out" aria-label={model.id}>
          <ModelHead model={model} />
        </article>
      ))}
      {broken.length > 0 && (
        <details class="broken-files">
          <summary>{TEXT.live.cannotLoad(counted(broken.length, "file"))}</summary>
          {broken.map(({ id, reason }) => (
            <p key={id}>
              <b>{id}</b>: {reason}
            </p>
          ))}
        </details>
      )}
    </section>
  );
}

function ModelHead({ model }: { model: LiveModel }) {
  const { id, state, pinned } = model;
  const [problem, setProblem] = useState<string | null>(null);
  const [asking, setAsking] = useState(false);
  const there = state === "loaded" || state === "loading";
  const action = there ? "unload" : "load";

  async function act() {
    setAsking(true);
    setProblem(null);
    try {
      await postJson(`/models/${action}`, { model: id });
    } catch (error) {
      setProblem(explained(error, action));
    }
    setAsking(false);
  }

  return (
    <>
      <div class="model-head">
        <h3>{id}</h3>
        <span class={`model-state ${state}`}>{state}</span>
        {pinned && <span class="model-state">{TEXT.live.pinned}</span>}
        <button
          type="button"
          disabled={asking}
          onClick={act}
          aria-label={there ? TEXT.models.unloadOne(id) : TEXT.models.loadOne(id)}
        >
          {there ? TEXT.models.unload : TEXT.models.load}
        </button>
      </div>
      <p class="live-model-facts">{factsOf(model).join(" · ")}</p>
      {problem !== null && (
        <p class="problem small" role="alert">
          {problem}
        </p>
      )}
    </>
  );
}

function LoadProgress({ model: { id, progress } }: { model: LiveModel }) {
  return (
    <progress
      class="load"
      max={1}
      {...(progress !== null && { value: progress })}
      aria-label={TEXT.models.loadingOne(id)}
    >
      {progress !== null && percent(progress)}
    </progress>
  );
}

function factsOf({ kind, state, memory, gpu_memory, context, leaves_in, totals }: LiveModel): string[] {
  const facts: string[] = [kind];
  const there = state === "loaded";
  const size = (amount: number) => (there ? bytes(amount) : TEXT.live.about(bytes(amount)));
  if (memory !== null) facts.push(size(memory));
  if (gpu_memory) facts.push(TEXT.live.onGpu(size(gpu_memory)));
  if (context !== null) facts.push(TEXT.live.context(count(context)));
  const guessed = guesses(totals);
  if (guessed !== null) facts.push(guessed);
  if (there && leaves_in !== null) facts.push(TEXT.live.unloadsIfIdle(duration(leaves_in)));
  return facts;
}

function explained(error: unknown, action: string): string {
  if (!(error instanceof ApiError)) throw error;
  return error.status === 403 ? TEXT.live.adminRequired(action, error.message) : error.message;
}
