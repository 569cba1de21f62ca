/** Models that several replicas serve. */

import type { LiveModel, Prefix, Replica } from "../api/live";

/** The models whose replicas are shown: those with several, or with one that runs elsewhere. */
export function pools(models: readonly LiveModel[]): LiveModel[] {
  return models.filter(({ replicas }) => replicas.length > 1 || replicas.some(({ kind }) => kind !== "worker"));
}

/** The requests that are computed now, here and elsewhere. */
export function runningIn(model: LiveModel): number {
  return model.slots.filter(({ state }) => state !== "idle").length + runningElsewhere(model);
}

/** Those on remote servers or a cluster, whose slots are not shown. */
export function runningElsewhere({ replicas }: LiveModel): number {
  return replicas.reduce((all, { kind, running }) => all + (kind === "worker" ? 0 : running), 0);
}

/** From 0 to 1: how many of its slots are busy. Null if it has no known slots. */
export function busyShare({ running, slots }: Replica): number | null {
  return slots > 0 ? Math.min(1, running / slots) : null;
}

/** From 0 to 1: how many of its prompt tokens came from its cache. Null if that is not known. */
export function cachedShare({ prompt_tokens, cached_tokens }: Replica): number | null {
  if (prompt_tokens === null || cached_tokens === null || prompt_tokens + cached_tokens === 0) return null;
  return cached_tokens / (prompt_tokens + cached_tokens);
}

/** How many parts come before each part. Parents come before their children. */
export function depths(prefixes: readonly Prefix[]): Map<number, number> {
  const found = new Map<number, number>();
  for (const { id, parent } of prefixes) found.set(id, parent === null ? 0 : (found.get(parent) ?? -1) + 1);
  return found;
}
