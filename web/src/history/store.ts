/**
 * Stores conversations in this browser (IndexedDB), and nowhere else.
 *
 * Each message is a record, and a conversation's record is changed field by field inside a transaction. So
 * two tabs can write at the same time without overwriting each other.
 */

import { signal } from "@preact/signals";
import { type DBSchema, type IDBPDatabase, openDB } from "idb";
import type { Conversation, Message } from "../chat/tree";
import { TEXT } from "../text";
import { type Found, found } from "./search";
import { copyOf, type Stored } from "./transfer";

interface Schema extends DBSchema {
  conversations: { key: string; value: Conversation };
  messages: { key: string; value: Message; indexes: { conversation: string } };
}

/** Why nothing can be stored. The chat still works. */
export const storageProblem = signal<string | null>(null);

/** All stored conversations. */
export const conversations = signal<Conversation[]>([]);

/** Tells other tabs which conversation has changed. */
const channel = new BroadcastChannel("paddock.history");
const listeners = new Set<(conversation: string | null) => void>();
channel.addEventListener("message", ({ data }: MessageEvent<string | null>) => {
  void refresh();
  for (const listener of listeners) listener(data);
});

/** Call `listener` when another tab changes a conversation; null: several. */
export function onChangeElsewhere(listener: (conversation: string | null) => void): void {
  listeners.add(listener);
}

let opened: Promise<IDBPDatabase<Schema>> | null = null;

function database(): Promise<IDBPDatabase<Schema>> {
  opened ??= openDB<Schema>("paddock", 1, {
    upgrade(db) {
      db.createObjectStore("conversations", { keyPath: "id" });
      db.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
    },
    blocking: (_current, _blocked, event) => (event.target as IDBDatabase).close(),
    terminated: () => {
      opened = null;
    },
  });
  return opened;
}

async function attempt<T>(otherwise: T, work: (db: IDBPDatabase<Schema>) => Promise<T>): Promise<T> {
  try {
    const result = await work(await database());
    storageProblem.value = null;
    return result;
  } catch (error) {
    opened = null;
    storageProblem.value = TEXT.history.notStored((error as Error).message || String(error));
    return otherwise;
  }
}

function told(conversation: string | null): void {
  void refresh();
  channel.postMessage(conversation);
}

export async function refresh(): Promise<void> {
  const stored = await attempt(null, (db) => db.getAll("conversations"));
  if (stored) conversations.value = stored;
}

export async function load(id: string): Promise<Stored | null> {
  return attempt(null, async (db) => {
    const [conversation, messages] = await Promise.all([
      db.get("conversations", id),
      db.getAllFromIndex("messages", "conversation", id),
    ]);
    return conversation ? { conversation, messages } : null;
  });
}

export async function create(conversation: Conversation): Promise<void> {
  await attempt(undefined, async (db) => void (await db.put("conversations", conversation)));
  told(conversation.id);
}

/** Change fields of a conversation, if it still exists. */
export async function change(id: string, fields: Partial<Conversation>): Promise<void> {
  await attempt(undefined, async (db) => {
    const transaction = db.transaction("conversations", "readwrite");
    const conversation = await transaction.store.get(id);
    if (conversation) await transaction.store.put({ ...conversation, ...fields });
    await transaction.done;
  });
  told(id);
}

/** Save messages of a conversation, unless it was deleted meanwhile. */
export async function save(...messages: Message[]): Promise<void> {
  const id = messages[0]?.conversation;
  if (id === undefined) return;
  await attempt(undefined, async (db) => {
    const transaction = db.transaction(["conversations", "messages"], "readwrite");
    const conversation = await transaction.objectStore("conversations").get(id);
    if (conversation) {
      await transaction.objectStore("conversations").put({ ...conversation, updated: Date.now() });
      for (const message of messages) await transaction.objectStore("messages").put(message);
    }
    await transaction.done;
  });
  told(id);
}

/** Delete a conversation. Returns it, so that it can be restored. */
export async function remove(id: string): Promise<Stored | null> {
  const stored = await load(id);
  await attempt(undefined, async (db) => {
    const transaction = db.transaction(["conversations", "messages"], "readwrite");
    await transaction.objectStore("conversations").delete(id);
    const keys = await transaction.objectStore("messages").index("conversation").getAllKeys(id);
    for (const key of keys) await transaction.objectStore("messages").delete(key);
    await transaction.done;
  });
  told(id);
  return stored;
}

export async function all(): Promise<Stored[]> {
  return attempt([], async (db) => {
    const [stored, messages] = await Promise.all([db.getAll("conversations"), db.getAll("messages")]);
    const byConversation = new Map<string, Message[]>(stored.map(({ id }) => [id, []]));
    for (const message of messages) byConversation.get(message.conversation)?.push(message);
    return stored.map((conversation) => ({ conversation, messages: byConversation.get(conversation.id) ?? [] }));
  });
}

/**
 * Add conversations, all or none. If an id is taken by another version, a copy is added. Returns how many were
 * new, or null if they cannot be stored.
 */
export async function add(stored: Stored[], newId: () => string): Promise<number | null> {
  const added = await attempt<number | null>(null, async (db) => {
    const transaction = db.transaction(["conversations", "messages"], "readwrite");
    const messages = transaction.objectStore("messages");
    let count = 0;
    for (const each of stored) {
      const there = await transaction.objectStore("conversations").get(each.conversation.id);
      const known = there ? await messages.index("conversation").getAll(each.conversation.id) : [];
      if (there && isPart(each.messages, known)) continue;
      const fresh = there || (await anyKey(messages, each.messages)) ? copyOf(each, newId) : each;
      await transaction.objectStore("conversations").put(fresh.conversation);
      for (const message of fresh.messages) await messages.put(message);
      count++;
    }
    await transaction.done;
    return count;
  });
  told(null);
  return added;
}

async function anyKey(
  store: { getKey(id: string): Promise<string | undefined> },
  messages: Message[],
): Promise<boolean> {
  for (const { id } of messages) if ((await store.getKey(id)) !== undefined) return true;
  return false;
}

function isPart(messages: Message[], known: Message[]): boolean {
  const contents = new Map(known.map(({ id, content }) => [id, content]));
  return messages.every(({ id, content }) => contents.get(id) === content);
}

export async function search(query: string): Promise<Found[]> {
  return attempt([], async (db) => {
    const [stored, messages] = await Promise.all([db.getAll("conversations"), db.getAll("messages")]);
    return found(query, stored, messages);
  });
}
