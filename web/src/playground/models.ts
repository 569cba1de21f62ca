/** The models that can be asked, as the server lists them. Looking loads none. */

import { effect, signal } from "@preact/signals";
import { ApiError, getJson } from "../api/client";
import { key } from "../api/key";

export interface ModelCard {
  id: string;
  kind: "generation" | "embedding" | "reranking" | null;
  status: { value: string; problem?: string };
}

export const models = signal<readonly ModelCard[] | null>(null);
export const modelsProblem = signal<string | null>(null);

/** Ask for them now and with every other key, until the returned function is called. */
export function followModels(): () => void {
  return effect(() => {
    key.value;
    void ask();
  });
}

async function ask(): Promise<void> {
  try {
    models.value = (await getJson<{ data: ModelCard[] }>("/v1/models")).data;
    modelsProblem.value = null;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    modelsProblem.value = error.message;
  }
}
