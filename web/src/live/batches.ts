/** A batch as `GET /v1/batches` lists it. */
export interface Batch {
  id: string;
  endpoint: string;
  status: "validating" | "failed" | "in_progress" | "finalizing" | "completed" | "expired" | "cancelling" | "cancelled";
  request_counts: { total: number; completed: number; failed: number };
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
