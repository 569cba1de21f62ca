/** Cache reports in words. */

import type { CacheReport, Parting } from "../api/live";
import { count } from "./words";

export const REASONS: Record<CacheReport["reason"], string> = {
  hit: "The whole prompt is known.",
  extended: "It goes on where the known prompt ends.",
  changed: "It differs from the nearest known prompt.",
  evicted: "Most of it was known, but has been evicted.",
  not_reusable: "Most of it is cached, but could not be reused.",
  new: "No known prompt begins like this one.",
  off: "The cache was not used.",
};

/** `12 from cells, 300 from disk`. */
export function partsOf({ reused }: CacheReport): string {
  const parts: [number, string][] = [
    [reused.cells, "cells"],
    [reused.host, "host memory"],
    [reused.disk, "disk"],
  ];
  return parts
    .filter(([tokens]) => tokens > 0)
    .map(([tokens, tier]) => `${count(tokens)} from ${tier}`)
    .join(", ");
}

export function placeOf({ message, tool, character }: Parting): string {
  if (tool !== null) return `Tool definition ${tool}`;
  if (message === null) return `Character ${count(character)} of the prompt`;
  const name =
    message.role === "system" && message.index === 0 ? "System message" : `Message ${message.index} (${message.role})`;
  return message.character === null ? `${name}, outside its text` : `${name}, character ${count(message.character)}`;
}
