/** Quantiles of histograms, also of the observations between two samples. */

import type { Histogram } from "../api/live";

/** The increase of a counter. After a restart of the server it starts from zero. */
export function increase(before: number, now: number): number {
  return now >= before ? now - before : now;
}

/** The observations between two samples of a histogram. */
export function between(before: Histogram, now: Histogram): Histogram {
  const restarted = now.counts.some((count, place) => count < (before.counts[place] ?? 0));
  if (restarted) return now;
  return { bounds: now.bounds, counts: now.counts.map((count, place) => count - (before.counts[place] ?? 0)) };
}

/** The sum over several models. Histograms of one metric have the same bounds everywhere. */
export function sum(histograms: readonly Histogram[]): Histogram {
  const [first] = histograms;
  if (!first) return { bounds: [], counts: [] };
  return {
    bounds: first.bounds,
    counts: first.counts.map((_, place) => histograms.reduce((all, { counts }) => all + (counts[place] ?? 0), 0)),
  };
}

/**
 * The quantile of `share`, interpolated linearly between two bounds. Observations above the last bound count as
 * that bound. Without observations there is no quantile.
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
