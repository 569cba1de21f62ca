/** What `GET /live` tells: the state of the server each second, and each model's prefix tree when it has changed. */

export type ModelState = "unloaded" | "loading" | "loaded" | "failed";

export interface Slot {
  id: number;
  state: "idle" | "prompt" | "answer";
  prompt_tokens: number;
  /** How many tokens of the prompt have been read, those that were known already among them. */
  prompt_done: number;
  cached_tokens: number;
  answered_tokens: number;
  /** Whose request it is, where the viewer may know. */
  key: string | null;
}

/** Counts of times by their upper bounds in seconds; the last count is of all that took longer. */
export interface Histogram {
  bounds: number[];
  counts: number[];
}

/** Numbers that never go back, so that two samples give a rate. */
export interface Totals {
  requests: number;
  prompt_tokens: number;
  cached_tokens: number;
  answered_tokens: number;
  preemptions: number;
  evictions: number;
}

export interface LiveModel {
  id: string;
  kind: "generation" | "embedding" | "reranking";
  state: ModelState;
  /** How far its load has come, from 0 to 1. */
  progress: number | null;
  /** Why it is failed. */
  reason: string | null;
  pinned: boolean;
  context: number | null;
  /** Bytes that it holds, or would hold by our estimate. */
  memory: number | null;
  gpu_memory: number | null;
  /** Seconds until it leaves because nobody asks it. */
  leaves_in: number | null;
  slots: Slot[];
  waiting: number;
  totals: Totals;
  first_token: Histogram;
  inter_token: Histogram;
}

export interface LiveState {
  time: number;
  version: string;
  memory: { limit: number | null; used: number };
  gpu_memory: { limit: number | null; used: number };
  models: LiveModel[];
}

/** A span of tokens that is computed once for all who share it. */
export interface TreeNode {
  id: number;
  parent: number | null;
  /** How many tokens come before it, and how many it holds. */
  start: number;
  tokens: number;
  /** In cells of a running sequence; copied to host memory. */
  hot: boolean;
  stored: boolean;
  /** The slots that run on it now. */
  slots: number[];
  hits: number;
  /** The beginning of its text, where the viewer may see it. */
  text: string | null;
}

export interface Tree {
  model: string;
  time: number;
  cells: { total: number; used: number };
  stored: { limit: number; used: number };
  hits: number;
  misses: number;
  evictions: number;
  nodes: TreeNode[];
  /** How many spans were left out because there are too many to draw. */
  omitted: number;
}
