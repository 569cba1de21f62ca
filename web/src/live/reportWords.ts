/** Cache reports in words. */

import type { CacheReport, Parting } from "../api/live";
import { TEXT } from "../text";
import { count } from "./words";

export const REASONS: Record<CacheReport["reason"], string> = TEXT.live.reasons;

/** `12 from KV cache, 300 from disk`. */
export function partsOf({ reused }: CacheReport): string {
  const parts: [number, string][] = [
    [reused.cells, TEXT.live.sources.cells],
    [reused.host, TEXT.live.sources.host],
    [reused.disk, TEXT.live.sources.disk],
  ];
  return parts
    .filter(([tokens]) => tokens > 0)
    .map(([tokens, tier]) => TEXT.live.fromSource(count(tokens), tier))
    .join(", ");
}

export function placeOf({ message, tool, character }: Parting): string {
  if (tool !== null) return `Tool definition ${tool}`;
  if (message === null) return `Character ${count(character)} of the prompt`;
  const name =
    message.role === "system" && message.index === 0 ? "System message" : `Message ${message.index} (${message.role})`;
  return message.character === null ? `${name}, outside its text` : `${name}, character ${count(message.character)}`;
}
