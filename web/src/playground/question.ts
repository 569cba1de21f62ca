import { type ReadonlySignal, signal } from "@preact/signals";
import { ApiError } from "../api/client";

/** A request that a tab repeats: its last result or error. */
export interface Question<T> {
  answer: ReadonlySignal<T | null>;
  problem: ReadonlySignal<string | null>;
  asking: ReadonlySignal<boolean>;
  ask(find: () => Promise<T>): Promise<void>;
}

export function question<T>(): Question<T> {
  const answer = signal<T | null>(null);
  const problem = signal<string | null>(null);
  const asking = signal(false);
  async function ask(find: () => Promise<T>): Promise<void> {
    asking.value = true;
    problem.value = null;
    try {
      answer.value = await find();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      answer.value = null;
      problem.value = error.message;
    }
    asking.value = false;
  }
  return { answer, problem, asking, ask };
}
