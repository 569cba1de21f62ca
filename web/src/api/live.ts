/** The events of `GET /live`: the state of the server each second, and a model's prefix tree when it changes. */

export type ModelState = "unloaded" | "loading" | "loaded" | "failed";

export interface Slot {
  id: number;
  state: "idle" | "prompt" | "answer";
  prompt_tokens: number;
  /** How many tokens of the prompt are computed, with the cached ones. */
  prompt_done: number;
  cached_tokens: number;
  answered_tokens: number;
  /** Guessed tokens of the answer, and those of them that were accepted. */
  drafted_tokens: number;
  accepted_tokens: number;
  /** The API key of the request, if the viewer may know it. */
  key: string | null;
}

/** Counts of durations by their upper bounds in seconds. The last count is of all longer ones. */
export interface Histogram {
  bounds: number[];
  counts: number[];
}

/** Counters: two samples give a rate. */
export interface Totals {
  requests: number;
  prompt_tokens: number;
  cached_tokens: number;
  answered_tokens: number;
  /** Guessed tokens, and those of them that were accepted. */
  drafted_tokens: number;
  accepted_tokens: number;
  preemptions: number;
  evictions: number;
}

/** One of the workers, remote servers or replicas on a cluster that serve a model together. */
export interface Replica {
  name: string;
  kind: "worker" | "server" | "ray";
  /** The URL or the cluster node, if the viewer may know it. */
  place: string | null;
  state: "unloaded" | "loading" | "ready" | "down";
  /** The progress of a local worker's load, from 0 to 1. */
  progress: number | null;
  /** Why it is down, if that is known. */
  reason: string | null;
  drained: boolean;
  /** Why it gets no deterministic requests. */
  excluded: string | null;
  running: number;
  waiting: number;
  /** 0: unknown. */
  slots: number;
  /** Prompt tokens that were computed, and those from the cache. Null: unknown. */
  prompt_tokens: number | null;
  cached_tokens: number | null;
  answered_tokens: number;
}

export interface LiveModel {
  id: string;
  kind: "generation" | "embedding" | "reranking";
  state: ModelState;
  /** The progress of its load, from 0 to 1. */
  progress: number | null;
  /** Why it failed. */
  reason: string | null;
  /** Its file cannot be read. */
  broken: boolean;
  pinned: boolean;
  context: number | null;
  /** Bytes that it uses, or would use by our estimate. */
  memory: number | null;
  gpu_memory: number | null;
  /** Seconds until it is unloaded because it is idle. */
  leaves_in: number | null;
  /** Of all its local workers. */
  slots: Slot[];
  waiting: number;
  /** Empty if one worker serves it. */
  replicas: Replica[];
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
  /** Files and batches are in use. Asking for them otherwise would create their folder. */
  has_batches: boolean;
}

/** Where a prompt differs from the nearest known one. */
export interface Parting {
  token: number;
  character: number;
  message: { index: number; role: string; character: number | null } | null;
  tool: string | null;
  text: string;
  /** Null if the words may belong to another key. */
  known: string | null;
}

/** Why a prompt was or was not cached. */
export interface CacheReport {
  summary: string;
  reason: "hit" | "extended" | "changed" | "evicted" | "not_reusable" | "new" | "off";
  prompt_tokens: number;
  reused: { cells: number; host: number; disk: number };
  computed: number;
  evicted: number;
  not_reusable: number;
  parted: Parting | null;
}

/** The reports on the last prompts of a model, the newest last. */
export interface Reports {
  model: string;
  reports: { id: number; key: string | null; report: CacheReport }[];
}

/** A part that the same prompts share, and the replicas that likely have it cached. */
export interface Prefix {
  id: number;
  /** The part before it. */
  parent: number | null;
  /** How many characters precede it, and how many it has. */
  start: number;
  characters: number;
  /** How many of the last prompts have it. */
  prompts: number;
  /** Replica → which share of it. */
  held: Record<string, number>;
  /** Its beginning, if the viewer may see it. */
  text: string | null;
}

/** Where the prefixes of a model's last prompts are, each after its parent. */
export interface Prefixes {
  model: string;
  prefixes: Prefix[];
}

/** A span of tokens that is computed once for all requests that share it. */
export interface TreeNode {
  id: number;
  parent: number | null;
  /** How many tokens precede it, and how many it has. */
  start: number;
  tokens: number;
  /** Whether it is in cells of a running sequence, and whether it is copied to host memory. */
  hot: boolean;
  stored: boolean;
  /** The slots that use it now. */
  slots: number[];
  hits: number;
  /** The beginning of its text, if the viewer may see it. */
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
  /** How many spans are left out because there are too many to draw. */
  omitted: number;
}
