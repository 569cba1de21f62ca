/** A conversation is a tree: a message that is edited or answered again gets a sibling, and nothing is overwritten. */

import type { Settings } from "./settings";

export interface Attachment {
  name: string;
  text: string;
}

export interface ToolCall {
  id: string;
  name: string;
  /** JSON, as the model wrote it. */
  arguments: string;
}

/** What went wrong, in the server's words. */
export interface Problem {
  message: string;
  status: number;
  code: string | null;
  param: string | null;
  requestId: string | null;
}

export interface Statistics {
  promptTokens: number;
  cachedTokens: number;
  answerTokens: number;
  tokensPerSecond: number | null;
}

interface Common {
  id: string;
  conversation: string;
  parent: string | null;
  created: number;
  content: string;
}

export interface UserMessage extends Common {
  role: "user";
  attachments: Attachment[];
}

export interface AnswerMessage extends Common {
  role: "assistant";
  model: string | null;
  reasoning: string;
  /** Seconds. */
  thought: number | null;
  calls: ToolCall[];
  /** Why it ended, in the server's word. While there is none it is being written, or was stopped. */
  finish: string | null;
  problem: Problem | null;
  statistics: Statistics | null;
  /** Seconds until its first word, thought or call. */
  firstToken: number | null;
}

/** The result of a call, which somebody has typed in. */
export interface ToolMessage extends Common {
  role: "tool";
  call: string;
}

export type Message = UserMessage | AnswerMessage | ToolMessage;
export type Messages = ReadonlyMap<string, Message>;

export interface Conversation {
  id: string;
  title: string;
  /** Whether a person gave it its title. */
  named: boolean;
  created: number;
  updated: number;
  model: string | null;
  settings: Settings;
  /** Which of several siblings is shown, by the id of their parent (the first message has none: ""). */
  chosen: Record<string, string>;
}

const ROOT = "";

function childrenOf(messages: Messages): Map<string, Message[]> {
  const children = new Map<string, Message[]>();
  for (const message of messages.values()) {
    const place = message.parent ?? ROOT;
    const there = children.get(place);
    if (there) there.push(message);
    else children.set(place, [message]);
  }
  for (const siblings of children.values()) siblings.sort(byAge);
  return children;
}

function byAge(one: Message, other: Message): number {
  return one.created - other.created || (one.id < other.id ? -1 : 1);
}

export interface Place {
  message: Message;
  /** All that could stand here, oldest first. */
  siblings: Message[];
}

/** The branch that is shown, from its first message to its last: where nothing was chosen, the newest. */
export function branch(messages: Messages, chosen: Record<string, string>): Place[] {
  const children = childrenOf(messages);
  const places: Place[] = [];
  let siblings = children.get(ROOT);
  while (siblings) {
    const wanted = chosen[siblings[0]?.parent ?? ROOT];
    const message = siblings.find(({ id }) => id === wanted) ?? (siblings.at(-1) as Message);
    places.push({ message, siblings });
    siblings = children.get(message.id);
  }
  return places;
}

/** The messages from the first one to this one. */
export function pathTo(messages: Messages, id: string | null): Message[] {
  const path: Message[] = [];
  for (let at = id === null ? undefined : messages.get(id); at; at = at.parent ? messages.get(at.parent) : undefined) {
    path.push(at);
  }
  return path.reverse();
}

/** `chosen`, with this message as the one that is shown of its siblings. */
export function choosing(chosen: Record<string, string>, message: Message): Record<string, string> {
  return { ...chosen, [message.parent ?? ROOT]: message.id };
}

const LONGEST_TITLE = 60;

/** A title out of the first words. */
export function titleOf(text: string): string {
  const words = text
    .replace(/[#*_`>\s]+/g, " ")
    .trim()
    .slice(0, 4 * LONGEST_TITLE);
  if (words.length <= LONGEST_TITLE) return words || "New chat";
  const cut = words.slice(0, LONGEST_TITLE);
  return `${cut.slice(0, Math.max(cut.lastIndexOf(" "), LONGEST_TITLE / 2)).trimEnd()}…`;
}
