/** What the user typed and attached but did not send, by conversation. It survives other views and a reload. */

import { signal } from "@preact/signals";
import { dataUrl, fileOf, knownDataUrl } from "../attachments/encoding";
import { type Attachment, isMedia } from "../attachments/types";

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
  // In time for the end of the page, which cannot wait.
  for (const file of changed.files) if (isMedia(file)) void dataUrl(file.data);
}

addEventListener("pagehide", () => {
  const all = [...drafts.peek()];
  // A browser keeps a few megabytes. Text is more important than files, which the user still has.
  if (!kept(all)) kept(all.map(([id, { text }]) => [id, { text, files: [] }]));
});

function kept(all: [string, Draft][]): boolean {
  try {
    const written = all.map(([id, { text, files }]) => [id, { text, files: files.map(asStored) }]);
    sessionStorage.setItem(NAME, JSON.stringify(written));
    return true;
  } catch {
    return false;
  }
}

function stored(): Map<string, Draft> {
  try {
    const written: [string, { text: string; files: Attachment[] }][] = JSON.parse(sessionStorage.getItem(NAME) ?? "[]");
    return new Map(written.map(([id, { text, files }]) => [id, { text, files: files.flatMap(asRead) }]));
  } catch {
    return new Map();
  }
}

/** JSON has no bytes. */
function asStored(file: Attachment): Record<string, unknown> {
  return isMedia(file) ? { ...file, data: knownDataUrl(file.data) } : { ...file };
}

function asRead(file: Attachment): Attachment[] {
  if (!isMedia(file)) return [file];
  const data = fileOf(String(file.data));
  return data ? [{ ...file, data }] : [];
}
