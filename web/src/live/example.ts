/** Models, slots and spans for tests: each idle, except for what the test sets. */

import type { LiveModel, LiveState, Prefix, Replica, Slot, Totals, TreeNode } from "../api/live";

export const NO_TOTALS: Totals = {
  requests: 0,
  prompt_tokens: 0,
  cached_tokens: 0,
  answered_tokens: 0,
  drafted_tokens: 0,
  accepted_tokens: 0,
  preemptions: 0,
  evictions: 0,
};

export function aSlot(slot: Partial<Slot> = {}): Slot {
  return {
    id: 0,
    state: "idle",
    prompt_tokens: 0,
    prompt_done: 0,
    cached_tokens: 0,
    answered_tokens: 0,
    drafted_tokens: 0,
    accepted_tokens: 0,
    key: null,
    ...slot,
  };
}

export function slots(...states: Slot["state"][]): Slot[] {
  return states.map((state, id) => aSlot({ id, state }));
}

export function aModel(model: Partial<LiveModel> = {}): LiveModel {
  return {
    id: "demo",
    kind: "generation",
    state: "loaded",
    progress: null,
    reason: null,
    broken: false,
    pinned: false,
    context: 8192,
    memory: null,
    gpu_memory: null,
    leaves_in: null,
    slots: [],
    waiting: 0,
    replicas: [],
    totals: NO_TOTALS,
    first_token: { bounds: [0.1, 1], counts: [0, 0, 0] },
    inter_token: { bounds: [0.01, 0.1], counts: [0, 0, 0] },
    ...model,
  };
}

export function aReplica(name: string, replica: Partial<Replica> = {}): Replica {
  return {
    name,
    kind: "worker",
    place: null,
    state: "ready",
    progress: null,
    reason: null,
    drained: false,
    excluded: null,
    running: 0,
    waiting: 0,
    slots: 4,
    prompt_tokens: 0,
    cached_tokens: 0,
    answered_tokens: 0,
    ...replica,
  };
}

export function aPrefix(id: number, parent: number | null, prefix: Partial<Prefix> = {}): Prefix {
  return { id, parent, start: 0, characters: 100, prompts: 1, held: {}, text: null, ...prefix };
}

export function aState(models: LiveModel[], time = 0): LiveState {
  const nothing = { limit: null, used: 0 };
  return { time, version: "0", memory: nothing, gpu_memory: nothing, models, has_batches: false };
}

export function aNode(id: number, parent: number | null, tokens: number, node: Partial<TreeNode> = {}): TreeNode {
  return { id, parent, start: 0, tokens, hot: true, stored: false, slots: [], hits: 0, text: null, ...node };
}
