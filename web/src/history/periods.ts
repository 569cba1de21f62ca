/** Groups conversations by the time of their last message, the newest first. */

import type { Conversation } from "../chat/tree";
import { TEXT } from "../text";

export interface Period {
  name: string;
  conversations: Conversation[];
}

const DAY = 24 * 60 * 60 * 1000;

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
