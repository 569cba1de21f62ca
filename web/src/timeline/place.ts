/** Finds an answer in a prefix tree, by where it ends and by its words. The link to the live view carries both. */

import type { TreeNode } from "../api/live";

export interface Place {
  model: string;
  /** How many tokens the prompt and the answer have together. */
  tokens: number;
  /** Words of the prompt, which a span may begin with. */
  words: string;
}

export function placeId(place: Place): string {
  return JSON.stringify([place.model, place.tokens, place.words]);
}

export function placeIn(id: string | null): Place | null {
  try {
    const [model, tokens, words] = JSON.parse(id ?? "");
    const isPlace = typeof model === "string" && typeof tokens === "number" && typeof words === "string";
    return isPlace ? { model, tokens, words } : null;
  } catch {
    return null;
  }
}

/**
 * The spans from the root to the one that holds the end of the answer; empty if it is no longer cached. Among several
 * answers that are as long, the words decide, and then the newest.
 */
export function pathOf(nodes: readonly TreeNode[], { tokens, words }: Place): number[] {
  const known = new Map(nodes.map((node) => [node.id, node]));
  // The last token of an answer need not be computed.
  const ends = nodes.filter(({ start, tokens: length }) => start < tokens - 1 && start + length >= tokens - 2);
  let best: { path: TreeNode[]; score: number } | null = null;
  for (const end of ends) {
    const path: TreeNode[] = [];
    for (let at: TreeNode | undefined = end; at; at = at.parent === null ? undefined : known.get(at.parent)) {
      path.unshift(at);
    }
    const text = path.map((node) => node.text ?? "").join("");
    const score = (words !== "" && text.includes(words) ? 1e12 : 0) + end.id;
    if (!best || score > best.score) best = { path, score };
  }
  return best?.path.map(({ id }) => id) ?? [];
}
