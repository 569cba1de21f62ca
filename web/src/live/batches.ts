/** A batch as `GET /v1/batches` lists it. */
export interface Batch {
  id: string;
  endpoint: string;
  status: "validating" | "failed" | "in_progress" | "finalizing" | "completed" | "expired" | "cancelling" | "cancelled";
  request_counts: { total: number; completed: number; failed: number };
  /** The mistakes of a file that was refused. */
  errors?: { data: { message: string; line: number | null }[] } | null;
  output_file_id?: string | null;
  error_file_id?: string | null;
  /** The first lines that failed, also while the batch runs. */
  first_failures?: { custom_id: string; message: string }[];
  /** Why no line is running. */
  waiting_for?: string | null;
}

/** How many errors are shown. The file has all of them. */
export const MOST_ERRORS = 5;

/** The first mistakes of a refused file, in words. */
export function mistakes({ errors }: Batch): string[] {
  const found = errors?.data ?? [];
  return found.slice(0, MOST_ERRORS).map(({ line, message }) => (line === null ? message : `Line ${line}: ${message}`));
}

/** The first failures of a batch that runs, in words. When it has ended, the error file has all of them. */
export function failures(batch: Batch): string[] {
  if (!isActive(batch)) return [];
  return (batch.first_failures ?? []).map(({ custom_id, message }) => `${custom_id}: ${message}`);
}

interface ErrorLine {
  custom_id: string;
  error?: { message: string } | null;
  response?: { body?: { error?: { message: string } } } | null;
}

/** The first errors in the beginning of an error file. Its last line may be cut. */
export function firstErrors(beginning: string): string[] {
  const found: string[] = [];
  for (const line of beginning.split("\n")) {
    if (line.trim() === "" || found.length >= MOST_ERRORS) continue;
    try {
      const { custom_id, error, response } = JSON.parse(line) as ErrorLine;
      found.push(`${custom_id}: ${error?.message ?? response?.body?.error?.message ?? ""}`);
    } catch {
      break;
    }
  }
  return found;
}

const ACTIVE = new Set<Batch["status"]>(["validating", "in_progress", "finalizing", "cancelling"]);

export function isActive({ status }: Batch): boolean {
  return ACTIVE.has(status);
}

/** The requests that have a result, also if it is an error. */
export function done({ request_counts: { completed, failed } }: Batch): number {
  return completed + failed;
}

/** From 0 to 1. */
export function share(batch: Batch): number {
  const { total } = batch.request_counts;
  return total === 0 ? 0 : done(batch) / total;
}
