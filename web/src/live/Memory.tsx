import "./memory.css";
import type { LiveModel } from "../api/live";
import { TEXT } from "../text";
import { state } from "./stream";
import { bytes, percent } from "./words";

/** The memory of the models, and its limits. */
export function Memory() {
  const now = state.value;
  if (!now) return null;
  const { memory, gpu_memory: gpu, models } = now;
  return (
    <section class="panel memory" aria-label={TEXT.live.memory}>
      <MemoryBar title={TEXT.live.memory} {...memory} parts={partsOf(models, (model) => model.memory)} />
      {(gpu.limit !== null || gpu.used > 0) && (
        <MemoryBar title={TEXT.live.gpuMemory} {...gpu} parts={partsOf(models, (model) => model.gpu_memory)} />
      )}
    </section>
  );
}

interface Part {
  id: string;
  bytes: number;
  loading: boolean;
}

function partsOf(models: readonly LiveModel[], of: (model: LiveModel) => number | null): Part[] {
  return models
    .filter((model) => model.state === "loaded" || model.state === "loading")
    .map((model) => ({ id: model.id, bytes: of(model) ?? 0, loading: model.state === "loading" }))
    .filter((part) => part.bytes > 0);
}

function MemoryBar({
  title,
  limit,
  used,
  parts,
}: {
  title: string;
  limit: number | null;
  used: number;
  parts: Part[];
}) {
  const held = parts.reduce((all, part) => all + part.bytes, 0);
  const whole = Math.max(limit ?? 0, held, used, 1);
  return (
    <div class="memory-row">
      <h2>{title}</h2>
      <div class="memory-bar" aria-hidden="true">
        {parts.map(({ id, bytes: size, loading }, place) => (
          <i key={id} class={classOf(place, loading)} style={{ width: percentage(size / whole) }} />
        ))}
      </div>
      <p class="memory-sum">
        <strong>{bytes(used)}</strong>
        {limit === null ? TEXT.live.noLimit : TEXT.live.ofLimit(bytes(limit), percent(used / limit))}
      </p>
      <ul class="memory-parts">
        {parts.map(({ id, bytes: size, loading }, place) => (
          <li key={id}>
            <i class={classOf(place, loading)} aria-hidden="true" />
            {id} <span class="quiet">{loading ? TEXT.live.about(bytes(size)) : bytes(size)}</span>
          </li>
        ))}
      </ul>
    </div>
  );
}

function classOf(place: number, loading: boolean): string {
  return `part-${place % 4}${loading ? " loading" : ""}`;
}

function percentage(share: number): string {
  return `${(100 * share).toFixed(3)}%`;
}
