import { useSignal } from "@preact/signals";
import { ApiError, get } from "../api/client";
import { TEXT } from "../text";
import { type Batch, failures, firstErrors, mistakes } from "./batches";

/** The first errors of a batch, and buttons that download its files. */
export function BatchFiles({ batch }: { batch: Batch }) {
  const { id, output_file_id: output, error_file_id: errors } = batch;
  const known = [...mistakes(batch), ...failures(batch)];
  const problem = useSignal<string | null>(null);
  const load = (file: string, name: string) => {
    save(file, name).catch((error) => {
      problem.value = wordsOf(error);
    });
  };
  return (
    <>
      {output && (
        <button type="button" aria-label={TEXT.live.downloadOf(id)} onClick={() => load(output, `${id}.jsonl`)}>
          {TEXT.live.download}
        </button>
      )}
      {errors && (
        <button type="button" aria-label={TEXT.live.errorsOf(id)} onClick={() => load(errors, `${id}-errors.jsonl`)}>
          {TEXT.live.downloadErrors}
        </button>
      )}
      {problem.value && (
        <p class="problem small" role="alert">
          {problem.value}
        </p>
      )}
      {known.length > 0 && <Errors lines={known} />}
      {errors && <FirstErrors id={id} file={errors} />}
    </>
  );
}

/** Read when they are opened. */
function FirstErrors({ id, file }: { id: string; file: string }) {
  const lines = useSignal<string[] | null>(null);
  async function look() {
    if (lines.value !== null) return;
    try {
      lines.value = firstErrors(await beginning(file));
    } catch (error) {
      lines.value = [wordsOf(error)];
    }
  }
  return (
    <details class="batch-errors" onToggle={() => void look()}>
      <summary aria-label={TEXT.live.firstErrorsOf(id)}>{TEXT.live.firstErrors}</summary>
      {lines.value && <Errors lines={lines.value} />}
    </details>
  );
}

function Errors({ lines }: { lines: readonly string[] }) {
  return (
    <ul class="batch-errors problem">
      {lines.map((line) => (
        <li key={line}>{line}</li>
      ))}
    </ul>
  );
}

const BEGINNING = 64 << 10;

/** The first bytes of a file, which may be large. */
async function beginning(file: string): Promise<string> {
  const stop = new AbortController();
  const { body } = await get(contentOf(file), stop.signal);
  const reader = body?.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (let size = 0; reader && size < BEGINNING; ) {
    const { done, value } = await reader.read();
    if (done) return text;
    size += value.length;
    text += decoder.decode(value, { stream: true });
  }
  stop.abort();
  return text;
}

/** A link could not send the key. */
async function save(file: string, name: string): Promise<void> {
  const address = URL.createObjectURL(await (await get(contentOf(file))).blob());
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

function contentOf(file: string): string {
  return `/v1/files/${encodeURIComponent(file)}/content`;
}

function wordsOf(error: unknown): string {
  return error instanceof ApiError ? error.message : TEXT.app.unreachable;
}
