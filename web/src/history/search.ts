/** Finds conversations that have all words of a search in their titles or texts. */

import type { Conversation, Message } from "../chat/tree";

export interface Found {
  conversation: Conversation;
  /** The text around the first match. */
  excerpt: string | null;
}

const AROUND = 40;

export function found(query: string, conversations: Conversation[], messages: Message[]): Found[] {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = new Map<string, string>();
  for (const { conversation, content } of messages) {
    texts.set(conversation, `${texts.get(conversation) ?? ""}${content}\n`);
  }
  return conversations.flatMap((conversation) => {
    const title = conversation.title.toLowerCase();
    const text = texts.get(conversation.id) ?? "";
    const lower = text.toLowerCase();
    if (!words.every((word) => title.includes(word) || lower.includes(word))) return [];
    const places = words.map((word) => lower.indexOf(word)).filter((place) => place >= 0);
    return [{ conversation, excerpt: places.length > 0 ? around(text, Math.min(...places)) : null }];
  });
}

function around(text: string, place: number): string {
  const start = Math.max(0, place - AROUND / 2);
  const piece = text.slice(start, place + 2 * AROUND).replace(/\s+/g, " ");
  return `${start > 0 ? "…" : ""}${piece.trim()}${place + 2 * AROUND < text.length ? "…" : ""}`;
}
