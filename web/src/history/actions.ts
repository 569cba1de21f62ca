/** The user's actions on conversations in the history. */

import { href } from "../app/route";
import { newId } from "../chat/ids";
import { newChat } from "../chat/panels";
import { conversation as opened, stopAll } from "../chat/session";
import type { Conversation } from "../chat/tree";
import { TEXT } from "../text";
import { notify } from "../ui/notices";
import { asMarkdown } from "./markdownExport";
import { add, change, remove, storageProblem } from "./store";
import { exported, ImportProblem, imported, type Stored } from "./transfer";

const LARGEST_IMPORT = 256 * 1024 * 1024;

export async function renamed(conversation: Conversation, title: string): Promise<void> {
  const fields = { title, named: true };
  if (opened.value?.id === conversation.id) opened.value = { ...opened.value, ...fields };
  await change(conversation.id, fields);
}

/** Change fields of conversations, for example their folder. */
export async function changed(ids: string[], fields: Partial<Conversation>): Promise<void> {
  for (const id of ids) {
    if (opened.value?.id === id) opened.value = { ...opened.value, ...fields };
    await change(id, fields);
  }
}

/** Delete several conversations. Undo restores all of them. */
export async function removedAll(ids: string[]): Promise<void> {
  const wasOpen = ids.find((id) => opened.value?.id === id);
  for (const id of ids) stopAll(id);
  if (wasOpen) newChat();
  const stored: Stored[] = [];
  for (const id of ids) {
    const one = await remove(id);
    if (one) stored.push(one);
  }
  const undo = async () => {
    await add(stored, newId);
    if (wasOpen) location.hash = href("chat", wasOpen);
  };
  notify(TEXT.history.removedAll(stored.length), stored.length > 0 ? () => void undo() : null);
}

export async function removed(conversation: Conversation): Promise<void> {
  stopAll(conversation.id);
  const wasOpen = opened.value?.id === conversation.id;
  if (wasOpen) newChat();
  const stored = await remove(conversation.id);
  notify(TEXT.history.removed(conversation.title), stored ? () => void restore(stored, wasOpen) : null);
}

async function restore(stored: Stored, show: boolean): Promise<void> {
  await add([stored], newId);
  if (show) location.hash = href("chat", stored.conversation.id);
}

/** Save conversations as a file. The file of one conversation has its title as the name. */
export async function saveFile(stored: Stored[], title = "conversations"): Promise<void> {
  const now = new Date();
  download(new Blob([await exported(stored, now)], { type: "application/json" }), fileName(title, now));
}

/** Save conversations as one Markdown document. */
export function saveMarkdown(stored: Stored[]): void {
  const title = stored.length === 1 ? (stored[0]?.conversation.title ?? "") : "conversations";
  const text = stored.map(asMarkdown).join("\n---\n\n");
  download(new Blob([text], { type: "text/markdown" }), fileName(title, new Date(), "md"));
}

function download(file: Blob, name: string): void {
  const address = URL.createObjectURL(file);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** Letters and digits of any language: other characters are not allowed everywhere. */
export function fileName(title: string, now: Date, ending = "json"): string {
  const words = title.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
  return `paddock-${words.join("-").slice(0, 60) || "conversation"}-${now.toISOString().slice(0, 10)}.${ending}`;
}

export async function takeFile(file: File): Promise<void> {
  try {
    if (file.size > LARGEST_IMPORT) throw new ImportProblem(TEXT.history.tooLarge);
    const stored = imported(await file.text());
    const count = await add(stored, newId);
    if (count === null) throw new ImportProblem(storageProblem.value ?? "");
    notify(TEXT.history.imported(count, stored.length - count));
  } catch (error) {
    if (!(error instanceof ImportProblem)) throw error;
    notify(TEXT.history.notImported(error.message));
  }
}
