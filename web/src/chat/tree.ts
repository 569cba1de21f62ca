/** A conversation is a tree: an edited or regenerated message gets a sibling, and nothing is overwritten. */

import type { CacheReport } from "../api/live";
import type { Attachment } from "../attachments/types";
import { TEXT } from "../text";
import type { TimeParts } from "../timeline/parts";
import type { Settings } from "./settings";

export interface ToolCall {
  id: string;
  name: string;
  /** JSON, as the model wrote it or the user changed it. */
  arguments: string;
  /** What the model wrote, if the user has changed it. */
  written?: string;
  /** It was sent to the server's tool, and its end is not known. */
  begun?: boolean;
  /** The result of the tool, or of the user who declined, until it is sent. */
  result?: string;
  failed?: boolean;
}

/** The server's error message. */
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
  /** What the time was spent on, at the end; of an older version or another server: nothing. */
  parts?: TimeParts | null;
  report?: CacheReport | null;
  /** Seconds from the request to the last token, as the browser saw it. */
  waited?: number;
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
  /** The server's finish reason. Without one, the answer is being generated or was stopped. */
  finish: string | null;
  /** The beginning of its text, if the rest is a continuation of it. */
  continued: string;
  /** It is being generated, for this tab or another one, or was when its tab was closed. */
  open: boolean;
  problem: Problem | null;
  statistics: Statistics | null;
  /** Seconds until its first text, reasoning or call. */
  firstToken: number | null;
}

/** The result of a call, of a tool or as the user entered it. */
export interface ToolMessage extends Common {
  role: "tool";
  call: string;
}

export type Message = UserMessage | AnswerMessage | ToolMessage;
export type Messages = ReadonlyMap<string, Message>;

export interface Conversation {
  id: string;
  title: string;
  /** Whether the user or a model set the title. */
  named: boolean;
  pinned?: boolean;
  folder?: string;
  created: number;
  updated: number;
  model: string | null;
  settings: Settings;
  /** Tools that run without a question, as `SERVER/TOOL`. Not exported. */
  allowed?: string[];
  /** The sibling that is shown, by the id of its parent (the first message has none: ""). */
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
  /** All siblings, the oldest first. */
  siblings: Message[];
}

/** The branch that is shown, from first to last message. Without a choice the newest sibling is shown. */
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

/** `chosen`, with this message shown instead of its siblings. */
export function choosing(chosen: Record<string, string>, message: Message): Record<string, string> {
  return { ...chosen, [message.parent ?? ROOT]: message.id };
}

const LONGEST_TITLE = 60;

/** A title made of the first words. */
export function titleOf(text: string): string {
  const words = text
    .replace(/[#*_`>\s]+/g, " ")
    .trim()
    .slice(0, 4 * LONGEST_TITLE);
  if (words.length <= LONGEST_TITLE) return words || TEXT.chat.newChat;
  const cut = words.slice(0, LONGEST_TITLE);
  return `${cut.slice(0, Math.max(cut.lastIndexOf(" "), LONGEST_TITLE / 2)).trimEnd()}…`;
}
