/** What the user typed and attached but did not send, by conversation. It survives other views and a reload. */

import { signal } from "@preact/signals";
import type { Attachment } from "./tree";

export interface Draft {
  text: string;
  files: Attachment[];
}

/** The place of the draft of a conversation that does not exist yet. */
export const NEW = "";
const NAME = "paddock.drafts";
const NOTHING: Draft = { text: "", files: [] };

const drafts = signal<ReadonlyMap<string, Draft>>(stored());

export function draftOf(conversation: string): Draft {
  return drafts.value.get(conversation) ?? NOTHING;
}

export function changeDraft(conversation: string, fields: Partial<Draft>): void {
  const changed = { ...(drafts.peek().get(conversation) ?? NOTHING), ...fields };
  const next = new Map(drafts.peek());
  if (changed.text === "" && changed.files.length === 0) next.delete(conversation);
  else next.set(conversation, changed);
  drafts.value = next;
}

addEventListener("pagehide", () => {
  const all = [...drafts.peek()];
  // A browser keeps a few megabytes. Text is more important than files, which the user still has.
  if (!kept(all)) kept(all.map(([id, { text }]) => [id, { text, files: [] }]));
});

function kept(all: [string, Draft][]): boolean {
  try {
    sessionStorage.setItem(NAME, JSON.stringify(all));
    return true;
  } catch {
    return false;
  }
}

function stored(): Map<string, Draft> {
  try {
    return new Map(JSON.parse(sessionStorage.getItem(NAME) ?? "[]"));
  } catch {
    return new Map();
  }
}
