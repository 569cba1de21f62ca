import { expect, test } from "vitest";
import type { TreeNode } from "../api/live";
import { partsIn, sources, type TimeParts, timeline, verdict } from "./parts";
import { pathOf, placeId, placeIn } from "./place";

const PARTS: TimeParts = {
  load: 0,
  queue: 500,
  media: 0,
  restore: 20,
  prefill: 1000,
  others: 300,
  decode: 2000,
  overhead: 80,
};

test("the parts of the timings of a Paddock are read, and those of other servers are not there", () => {
  const timings = Object.fromEntries(Object.entries(PARTS).map(([name, ms]) => [`${name}_ms`, ms]));
  expect(partsIn({ ...timings, total_ms: 3900, cache_n: 1 })).toEqual(PARTS);
  expect(partsIn({ prompt_ms: 1, predicted_ms: 2 })).toBeNull();
});

test("the parts add up to the time that the user waited", () => {
  for (const waited of [null, 3.9, 4.4, 1]) {
    const parts = timeline(PARTS, waited);
    const total = Math.max(3900, 1000 * (waited ?? 0));
    expect(parts.reduce((sum, { ms }) => sum + ms, 0)).toBeCloseTo(total);
    expect(parts.reduce((sum, { share }) => sum + share, 0)).toBeCloseTo(1);
    expect(parts.some(({ name }) => name === "network")).toBe(waited === 4.4);
  }
  expect(timeline(PARTS, null).map(({ name }) => name)).toEqual([
    "queue",
    "restore",
    "prefill",
    "others",
    "decode",
    "overhead",
  ]);
});

test("the largest part is the verdict", () => {
  expect(verdict(timeline(PARTS, null))).toMatch(/generating/);
  expect(verdict(timeline({ ...PARTS, load: 9000 }, null))).toMatch(/load/);
  expect(verdict([])).toBe("");
});

test("the sources of a prompt's tokens", () => {
  expect(sources({ cells: 3, host: 0, disk: 2 }, 4)).toEqual([
    { name: "cells", tokens: 3 },
    { name: "disk", tokens: 2 },
    { name: "computed", tokens: 4 },
  ]);
});

const node = (id: number, parent: number | null, start: number, tokens: number, text: string | null): TreeNode => ({
  ...{ id, parent, start, tokens, text, hot: true, stored: false },
  ...{ slots: [], hits: 0 },
});
const NODES = [
  node(1, null, 0, 20, "You are a groom."),
  node(2, 1, 20, 10, "What do mares eat? Grass."),
  node(3, 1, 20, 12, "How old do mares get? Thirty."),
  node(4, 2, 30, 8, "And foals?"),
];

test("an answer is found in the tree by its end and by its words", () => {
  const at = (tokens: number, words: string) => pathOf(NODES, { model: "m", tokens, words });
  expect(at(31, "What do mares")).toEqual([1, 2]);
  expect(at(31, "How old do")).toEqual([1, 3]);
  expect(at(31, "hidden")).toEqual([1, 3]);
  expect(at(38, "What do mares")).toEqual([1, 2, 4]);
  expect(at(90, "What do mares")).toEqual([]);
});

test("a link to the tree says which answer is meant", () => {
  const place = { model: "a/b:c", tokens: 31, words: 'say "hello"' };
  expect(placeIn(placeId(place))).toEqual(place);
  expect([placeIn(null), placeIn("x"), placeIn("[1]")]).toEqual([null, null, null]);
});
