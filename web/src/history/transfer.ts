/** Exports conversations to a file and imports them. A file with an error is refused as a whole. */

import { dataUrl, fileOf } from "../attachments/encoding";
import { type Attachment, isMedia } from "../attachments/types";
import { type Field, NOTHING_SET, type Settings } from "../chat/settings";
import type { AnswerMessage, Conversation, Message, Problem, Statistics, ToolCall } from "../chat/tree";
import { partsIn, type TimeParts } from "../timeline/parts";
import { foreign } from "./foreign";

export interface Stored {
  conversation: Conversation;
  messages: Message[];
}

const FORMAT = "paddock-conversations";
const VERSION = 1;

export async function exported(stored: Stored[], now: Date): Promise<string> {
  const conversations = await Promise.all(
    // What a conversation allows is for this browser only.
    stored.map(async ({ conversation: { allowed: _, ...conversation }, messages }) => ({
      ...conversation,
      messages: await Promise.all(messages.map(written)),
    })),
  );
  return JSON.stringify({ format: FORMAT, version: VERSION, exported: now.toISOString(), conversations }, null, 1);
}

/** JSON has no bytes: images and audio become `data:` addresses. */
async function written(message: Message): Promise<unknown> {
  if (message.role === "assistant" && message.statistics) {
    // The cache report is about the server's cache at that time.
    const { report: _, ...statistics } = message.statistics;
    return { ...message, statistics };
  }
  if (message.role !== "user") return message;
  const attachments = message.attachments.map(async (file) =>
    isMedia(file) ? { ...file, data: await dataUrl(file.data) } : file,
  );
  return { ...message, attachments: await Promise.all(attachments) };
}

/** Throws an `ImportProblem` that names the error and its place. */
export function imported(text: string): Stored[] {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new ImportProblem(`The file is not JSON: ${(error as Error).message}`);
  }
  const others = foreign(value);
  if (others) return checked(others);
  const file = record(value, "The file");
  if (file.format !== FORMAT)
    throw new ImportProblem(`The file is not in the format "${FORMAT}", and not an export of llama.cpp or Open WebUI.`);
  if (file.version !== VERSION) throw new ImportProblem(`Version ${file.version} of this format is not supported.`);
  return checked(list(file.conversations, "conversations").map(conversationOf));
}

/** Ids are keys of the store, and every parent must exist. */
function checked(stored: Stored[]): Stored[] {
  for (const [index, { messages }] of stored.entries()) checkTree(messages, `conversations[${index}]`);
  const ids = stored.flatMap(({ conversation, messages }) => [conversation.id, ...messages.map(({ id }) => id)]);
  if (new Set(ids).size < ids.length) throw new ImportProblem("Two conversations or messages have the same id.");
  return stored;
}

export class ImportProblem extends Error {}

/** The same conversation with new ids. */
export function copyOf({ conversation, messages }: Stored, newId: () => string): Stored {
  const ids = new Map<string, string>(messages.map(({ id }) => [id, newId()]));
  const renamed = (id: string) => ids.get(id) ?? id;
  const id = newId();
  const chosen = Object.entries(conversation.chosen).map(([parent, child]) => [renamed(parent), renamed(child)]);
  return {
    conversation: { ...conversation, id, chosen: Object.fromEntries(chosen) },
    messages: messages.map((message) => ({
      ...message,
      id: renamed(message.id),
      conversation: id,
      parent: message.parent === null ? null : renamed(message.parent),
    })),
  };
}

function conversationOf(value: unknown, index: number): Stored {
  const at = `conversations[${index}]`;
  const found = record(value, at);
  const id = nonEmpty(found.id, `${at}.id`);
  const messages = list(found.messages, `${at}.messages`).map((each, place) =>
    messageOf(each, id, `${at}.messages[${place}]`),
  );
  return {
    conversation: {
      id,
      title: nonEmpty(found.title, `${at}.title`),
      named: found.named === true,
      ...(found.pinned === true && { pinned: true }),
      ...(typeof found.folder === "string" && found.folder !== "" && { folder: found.folder }),
      created: number(found.created, `${at}.created`),
      updated: number(found.updated, `${at}.updated`),
      model: optional(string)(found.model, `${at}.model`),
      settings: settingsOf(found.settings ?? {}, `${at}.settings`),
      chosen: chosenOf(found.chosen ?? {}, `${at}.chosen`),
    },
    messages,
  };
}

function messageOf(value: unknown, conversation: string, at: string): Message {
  const found = record(value, at);
  const common = {
    id: nonEmpty(found.id, `${at}.id`),
    conversation,
    parent: optional(nonEmpty)(found.parent, `${at}.parent`),
    created: number(found.created, `${at}.created`),
    content: string(found.content, `${at}.content`),
  };
  switch (found.role) {
    case "user":
      return {
        ...common,
        role: "user",
        attachments: list(found.attachments ?? [], `${at}.attachments`).map(attached(at)),
      };
    case "tool":
      return { ...common, role: "tool", call: string(found.call, `${at}.call`) };
    case "assistant":
      return { ...common, role: "assistant", ...answerOf(found, at) };
    default:
      throw new ImportProblem(`${at}.role must be "user", "assistant" or "tool".`);
  }
}

function answerOf(
  found: Fields,
  at: string,
): Omit<AnswerMessage, "id" | "conversation" | "parent" | "created" | "content" | "role"> {
  return {
    model: optional(string)(found.model, `${at}.model`),
    reasoning: string(found.reasoning ?? "", `${at}.reasoning`),
    thought: optional(number)(found.thought, `${at}.thought`),
    calls: list(found.calls ?? [], `${at}.calls`).map((call, place) => callOf(call, `${at}.calls[${place}]`)),
    finish: optional(string)(found.finish, `${at}.finish`),
    open: false,
    continued: "",
    problem: optional(problemOf)(found.problem, `${at}.problem`),
    statistics: optional(statisticsOf)(found.statistics, `${at}.statistics`),
    firstToken: optional(number)(found.firstToken, `${at}.firstToken`),
  };
}

function attached(at: string): (value: unknown, place: number) => Attachment {
  return (value, place) => {
    const here = `${at}.attachments[${place}]`;
    const found = record(value, here);
    const name = string(found.name, `${here}.name`);
    if (found.kind !== "image" && found.kind !== "audio") return { name, text: string(found.text, `${here}.text`) };
    const data = fileOf(string(found.data, `${here}.data`));
    if (!data?.type.startsWith(found.kind))
      throw new ImportProblem(`${here}.data is not the data of an ${found.kind}.`);
    return { name, kind: found.kind, data };
  };
}

function callOf(value: unknown, at: string): ToolCall {
  const found = record(value, at);
  return {
    id: string(found.id, `${at}.id`),
    name: string(found.name, `${at}.name`),
    arguments: string(found.arguments, `${at}.arguments`),
    ...(found.written !== undefined && { written: string(found.written, `${at}.written`) }),
    ...(found.result !== undefined && { result: string(found.result, `${at}.result`) }),
    ...(found.begun === true && { begun: true }),
    ...(found.failed === true && { failed: true }),
  };
}

function problemOf(value: unknown, at: string): Problem {
  const found = record(value, at);
  return {
    message: string(found.message, `${at}.message`),
    status: number(found.status, `${at}.status`),
    code: optional(string)(found.code, `${at}.code`),
    param: optional(string)(found.param, `${at}.param`),
    requestId: optional(string)(found.requestId, `${at}.requestId`),
  };
}

function statisticsOf(value: unknown, at: string): Statistics {
  const found = record(value, at);
  return {
    promptTokens: number(found.promptTokens, `${at}.promptTokens`),
    cachedTokens: number(found.cachedTokens, `${at}.cachedTokens`),
    answerTokens: number(found.answerTokens, `${at}.answerTokens`),
    tokensPerSecond: optional(number)(found.tokensPerSecond, `${at}.tokensPerSecond`),
    ...(found.parts !== undefined && { parts: optional(partsOf)(found.parts, `${at}.parts`) }),
    ...(found.waited !== undefined && { waited: number(found.waited, `${at}.waited`) }),
  };
}

/** Null if one is missing. */
function partsOf(value: unknown, at: string): TimeParts | null {
  const found = Object.entries(record(value, at)).map(([name, time]) => [`${name}_ms`, time]);
  return partsIn(Object.fromEntries(found));
}

function settingsOf(value: unknown, at: string): Settings {
  const found = record(value, at);
  const names = Object.keys(NOTHING_SET) as Field[];
  return Object.fromEntries(
    names.map((name) => [name, string(found[name] ?? "", `${at}.${name}`)]),
  ) as unknown as Settings;
}

function chosenOf(value: unknown, at: string): Record<string, string> {
  const found = record(value, at);
  return Object.fromEntries(Object.entries(found).map(([parent, child]) => [parent, string(child, `${at}.${parent}`)]));
}

/** Check that every parent exists and that there is no cycle. */
function checkTree(messages: Message[], at: string): void {
  const parents = new Map(messages.map(({ id, parent }) => [id, parent]));
  const rooted = new Set<string>();
  for (const { id } of messages) {
    const path = new Set<string>();
    for (let here: string | null = id; here !== null && !rooted.has(here); here = parents.get(here) ?? null) {
      if (!parents.has(here)) throw new ImportProblem(`${at}: the message ${here} is named as a parent and missing.`);
      if (path.has(here)) throw new ImportProblem(`${at}: the message ${here} comes after itself.`);
      path.add(here);
    }
    for (const each of path) rooted.add(each);
  }
}

type Fields = Record<string, unknown>;
type Reader<T> = (value: unknown, at: string) => T;

function record(value: unknown, at: string): Fields {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new ImportProblem(`${at} must be an object.`);
  }
  return value as Fields;
}

function list(value: unknown, at: string): unknown[] {
  if (!Array.isArray(value)) throw new ImportProblem(`${at} must be a list.`);
  return value;
}

function string(value: unknown, at: string): string {
  if (typeof value !== "string") throw new ImportProblem(`${at} must be a text.`);
  return value;
}

function nonEmpty(value: unknown, at: string): string {
  if (string(value, at) === "") throw new ImportProblem(`${at} must not be empty.`);
  return value as string;
}

function number(value: unknown, at: string): number {
  if (typeof value !== "number") throw new ImportProblem(`${at} must be a number.`);
  return value;
}

function optional<T>(read: Reader<T>): Reader<T | null> {
  return (value, at) => (value === null || value === undefined ? null : read(value, at));
}
