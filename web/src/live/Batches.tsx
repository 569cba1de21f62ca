import "./batches.css";
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { ApiError, getJson, postJson } from "../api/client";
import { TEXT } from "../text";
import { BatchFiles } from "./BatchFiles";
import { type Batch, done, isActive, share } from "./batches";
import { count, percent } from "./words";

const EVERY_MS = 3_000;
const MOST = 20;

const batches = signal<Batch[]>([]);
const problem = signal<string | null>(null);

/** The batches of this key: their progress, and a button to cancel them. Nothing is shown if there are none. */
export function Batches() {
  useEffect(() => {
    let timer = 0;
    const closing = new AbortController();
    async function look() {
      if (!document.hidden) await list(closing.signal);
      if (!closing.signal.aborted) timer = setTimeout(look, EVERY_MS) as unknown as number;
    }
    void look();
    return () => {
      closing.abort();
      clearTimeout(timer);
    };
  }, []);
  if (batches.value.length === 0) return null;
  return (
    <section class="panel batches" aria-labelledby="batches-title">
      <h2 id="batches-title">{TEXT.live.batches}</h2>
      {problem.value !== null && (
        <p class="problem small" role="alert">
          {problem.value}
        </p>
      )}
      <ul aria-label={TEXT.live.batches}>
        {batches.value.map((batch) => (
          <Row key={batch.id} batch={batch} />
        ))}
      </ul>
    </section>
  );
}

function Row({ batch }: { batch: Batch }) {
  const { id, status, endpoint, request_counts: counts } = batch;
  return (
    <li class="batch">
      <span class={`model-state ${isActive(batch) ? "loading" : status === "failed" ? "failed" : ""}`}>{status}</span>
      <span class="batch-name">
        {id} <span class="quiet">{endpoint}</span>
      </span>
      <progress max={1} value={share(batch)} aria-label={TEXT.live.batchProgress(id)}>
        {percent(share(batch))}
      </progress>
      <span class="batch-count">
        {TEXT.live.batchCount(count(done(batch)), count(counts.total))}
        {counts.failed > 0 && <span class="problem"> {TEXT.live.batchFailed(count(counts.failed))}</span>}
      </span>
      {isActive(batch) && status !== "cancelling" && (
        <button type="button" aria-label={TEXT.live.cancelBatch(id)} onClick={() => void cancel(id)}>
          {TEXT.app.cancel}
        </button>
      )}
      {batch.waiting_for && <p class="batch-waiting quiet">{TEXT.live.batchWaits(batch.waiting_for)}</p>}
      <BatchFiles batch={batch} />
    </li>
  );
}

async function list(signal?: AbortSignal): Promise<void> {
  try {
    batches.value = (await getJson<{ data: Batch[] }>(`/v1/batches?limit=${MOST}`, signal)).data;
  } catch {
    // Some servers and keys have no batches, and a lost connection is reported above.
    if (!signal?.aborted) batches.value = [];
  }
}

async function cancel(id: string): Promise<void> {
  try {
    await postJson(`/v1/batches/${encodeURIComponent(id)}/cancel`, {});
    problem.value = null;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    problem.value = error.message;
  }
  await list();
}
