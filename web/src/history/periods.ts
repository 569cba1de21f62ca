/** Groups conversations by the time of their last message, the newest first. */

import type { Conversation } from "../chat/tree";
import { TEXT } from "../text";

export interface Period {
  name: string;
  conversations: Conversation[];
  isFolder?: boolean;
}

const DAY = 24 * 60 * 60 * 1000;

/** The pinned ones first, then the folders by name, then the others by time. */
export function sections(conversations: Conversation[], now: Date): Period[] {
  const pinned = conversations.filter((each) => each.pinned);
  const folders = new Map<string, Conversation[]>();
  for (const each of conversations) {
    if (!each.pinned && each.folder) folders.set(each.folder, [...(folders.get(each.folder) ?? []), each]);
  }
  const newest = (found: Conversation[]) => [...found].sort((one, other) => other.updated - one.updated);
  return [
    ...(pinned.length > 0 ? [{ name: TEXT.history.pinned, conversations: newest(pinned) }] : []),
    ...[...folders]
      .sort(([one], [other]) => one.localeCompare(other))
      .map(([folder, found]) => ({ name: folder, conversations: newest(found), isFolder: true })),
    ...periods(
      conversations.filter((each) => !each.pinned && !each.folder),
      now,
    ),
  ];
}

export function foldersOf(conversations: Conversation[]): string[] {
  return [...new Set(conversations.flatMap(({ folder }) => folder || []))].sort((a, b) => a.localeCompare(b));
}

export function periods(conversations: Conversation[], now: Date): Period[] {
  const found: Period[] = [];
  for (const conversation of [...conversations].sort((one, other) => other.updated - one.updated)) {
    const name = periodOf(new Date(conversation.updated), now);
    const last = found.at(-1);
    if (last?.name === name) last.conversations.push(conversation);
    else found.push({ name, conversations: [conversation] });
  }
  return found;
}

function periodOf(when: Date, now: Date): string {
  // By the user's calendar. Rounding handles days that are an hour longer or shorter.
  const days = Math.round((midnight(now) - midnight(when)) / DAY);
  if (days <= 0) return TEXT.history.periods[0];
  if (days === 1) return TEXT.history.periods[1];
  if (days < 7) return TEXT.history.periods[2];
  if (days < 30) return TEXT.history.periods[3];
  return when.toLocaleDateString("en", { month: "long", year: "numeric" });
}

function midnight(when: Date): number {
  return new Date(when.getFullYear(), when.getMonth(), when.getDate()).getTime();
}
