/** What the time of an answer was spent on: the server's parts, and the rest, which the network and the browser took. */

import { TEXT } from "../text";

/** Milliseconds, as the `timings` of a complete answer have them. */
export interface TimeParts {
  load: number;
  queue: number;
  media: number;
  restore: number;
  prefill: number;
  others: number;
  decode: number;
  overhead: number;
}

export type PartName = keyof TimeParts | "network";

/** In the order in which they happen. The prompts of others run between the steps of prefill and decode. */
const ORDER: (keyof TimeParts)[] = ["load", "queue", "media", "restore", "prefill", "others", "decode", "overhead"];

export interface Part {
  name: PartName;
  ms: number;
  /** Of all time, from 0 to 1. */
  share: number;
}

/** Null if the server is not a Paddock, or the answer did not end. */
export function partsIn(timings: Record<string, unknown>): TimeParts | null {
  const parts = ORDER.map((name) => [name, timings[`${name}_ms`]] as const);
  if (!parts.every(([, ms]) => typeof ms === "number")) return null;
  return Object.fromEntries(parts) as unknown as TimeParts;
}

/** Parts that take less than this share and less than a millisecond are not worth a line. */
const SMALL_SHARE = 0.002;

/** The parts of the seconds that the user has waited. */
export function timeline(parts: TimeParts, waited: number | null): Part[] {
  const known = ORDER.reduce((sum, name) => sum + parts[name], 0);
  const total = Math.max(known, 1000 * (waited ?? 0));
  const all: [PartName, number][] = [...ORDER.map((name) => [name, parts[name]] as [PartName, number])];
  all.push(["network", total - known]);
  return all
    .map(([name, ms]) => ({ name, ms, share: total > 0 ? ms / total : 0 }))
    .filter(({ ms, share }) => ms >= 1 || share > SMALL_SHARE);
}

/** The largest part, in a sentence. */
export function verdict(parts: readonly Part[]): string {
  const largest = parts.reduce<Part | null>((most, part) => (most && most.ms >= part.ms ? most : part), null);
  return largest ? TEXT.timeline.verdicts[largest.name] : "";
}

export interface Source {
  name: "cells" | "host" | "disk" | "computed";
  tokens: number;
}

/** Where the tokens of a prompt came from. */
export function sources(reused: { cells: number; host: number; disk: number }, computed: number): Source[] {
  const all: Source[] = [
    { name: "cells", tokens: reused.cells },
    { name: "host", tokens: reused.host },
    { name: "disk", tokens: reused.disk },
    { name: "computed", tokens: computed },
  ];
  return all.filter(({ tokens }) => tokens > 0);
}
