/** Times out of histograms: what lies between two samples of one, and which time a share of it stayed below. */

import type { Histogram } from "../api/live";

/** How much a number grew that only a restart of the server sets back: then it has begun anew. */
export function increase(before: number, now: number): number {
  return now >= before ? now - before : now;
}

/** What was observed between two samples of the same histogram. */
export function between(before: Histogram, now: Histogram): Histogram {
  const restarted = now.counts.some((count, place) => count < (before.counts[place] ?? 0));
  if (restarted) return now;
  return { bounds: now.bounds, counts: now.counts.map((count, place) => count - (before.counts[place] ?? 0)) };
}

/** Of several models together. Histograms of one thing have the same bounds everywhere. */
export function sum(histograms: readonly Histogram[]): Histogram {
  const [first] = histograms;
  if (!first) return { bounds: [], counts: [] };
  return {
    bounds: first.bounds,
    counts: first.counts.map((_, place) => histograms.reduce((all, { counts }) => all + (counts[place] ?? 0), 0)),
  };
}

/**
 * The time that `share` of all observations stayed below, as if those between two bounds lay evenly between them. What
 * took longer than the last bound is told as that bound, since nobody knows by how much; of nothing there is no time.
 */
export function quantile({ bounds, counts }: Histogram, share: number): number | null {
  const all = counts.reduce((left, right) => left + right, 0);
  if (all === 0) return null;
  const rank = share * all;
  let below = 0;
  for (const [place, count] of counts.entries()) {
    const upper = bounds[place];
    if (upper === undefined) break;
    if (count > 0 && below + count >= rank) {
      const lower = bounds[place - 1] ?? 0;
      return lower + ((upper - lower) * (rank - below)) / count;
    }
    below += count;
  }
  return bounds.at(-1) ?? null;
}
