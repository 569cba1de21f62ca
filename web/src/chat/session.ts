/** The open conversation, and all answers that this tab receives, also those of other conversations. */

import { batch, computed, effect, untracked } from "@preact/signals";
import { href } from "../app/route";
import type { Attachment } from "../attachments/types";
import * as store from "../history/store";
import { connection } from "../models/watching";
import { areAllowed, MOST_ROUNDS, offered, roundsIn } from "../tools/offered";
import { beginCalls, callsRunning, endCalls, stopCalls } from "../tools/running";
import type { Written } from "./answer";
import { newId } from "./ids";
import { ended as forgetRunning, receive, run, running } from "./receiving";
import { chatRequest } from "./request";
import { adopt, changeConversation, conversation, messages, model, settings, shown, takeDraft, wanted } from "./state";
import { knownStreams, startStream, streamOf } from "./streams";
import {
  type AnswerMessage,
  type Conversation,
  choosing,
  type Message,
  pathTo,
  type ToolMessage,
  titleOf,
  type UserMessage,
} from "./tree";

export { running, type Writing } from "./receiving";
export {
  changeSettings,
  chooseModel,
  conversation,
  messages,
  model,
  settings,
  settingsProblems,
  shown,
  wanted,
} from "./state";

/** The answer at the end of the shown branch, while it is generated. */
export const atWork = computed(() => {
  const last = shown.value.at(-1)?.message;
  return last ? (running.value.get(last.id) ?? null) : null;
});

/** Whether the open conversation generates an answer, or runs calls of tools. */
export const isBusy = computed(() => atWork.value !== null || callsRunning.value.has(conversation.value?.id ?? ""));

export async function open(id: string | null): Promise<void> {
  wanted.value = id;
  if (id === null) {
    batch(() => {
      conversation.value = null;
      messages.value = new Map();
    });
    return;
  }
  if (conversation.value?.id === id) return;
  await reopen(id);
}

async function reopen(id: string): Promise<void> {
  const stored = await store.load(id);
  // If two load at the same time, the one that was requested last is shown.
  if (wanted.value !== id) return;
  if (stored === null) {
    if (conversation.value?.id === id && store.storageProblem.value !== null) return;
    location.replace(href("chat"));
    return;
  }
  // For answers that this tab receives, its own state is newer than the store.
  const mine = [...running.value.values()].map(({ now }) => now.value.answer);
  const known = [...stored.messages, ...mine.filter((answer) => answer.conversation === id)];
  batch(() => {
    conversation.value = stored.conversation;
    messages.value = new Map(known.map((message) => [message.id, message]));
  });
  void readOnOpen();
}

store.onChangeElsewhere((id) => {
  const here = conversation.value?.id;
  if (here !== undefined && (id === here || id === null)) void reopen(here);
});

/** Add a message of the user at the end of the shown branch, and request an answer. */
export async function send(content: string, attachments: Attachment[]): Promise<void> {
  const current = conversation.value ?? (await begin(content || (attachments[0]?.name ?? "")));
  await say(current, shown.value.at(-1)?.message.id ?? null, content, attachments);
}

async function begin(words: string): Promise<Conversation> {
  const now = Date.now();
  const begun: Conversation = {
    id: newId(),
    title: titleOf(words),
    named: false,
    created: now,
    updated: now,
    ...takeDraft(),
    chosen: {},
  };
  batch(() => {
    wanted.value = begun.id;
    conversation.value = begun;
    messages.value = new Map();
  });
  await store.create(begun);
  history.replaceState(null, "", href("chat", begun.id));
  dispatchEvent(new HashChangeEvent("hashchange"));
  return begun;
}

async function say(to: Conversation, parent: string | null, content: string, attachments: Attachment[]): Promise<void> {
  const said: UserMessage = { ...common(to.id, parent, content), role: "user", attachments };
  await put(said);
  await answer(said);
}

/** Replace a message by an edited sibling. An edited answer is kept as the user wrote it. */
export async function edit(message: UserMessage | AnswerMessage, content: string): Promise<void> {
  const current = conversation.value;
  if (!current) return;
  if (message.role === "user") await say(current, message.parent, content, message.attachments);
  else await put({ ...message, ...common(current.id, message.parent, content), ...WRITTEN_BY_USER });
}

/** The statistics are those of another text. */
const WRITTEN_BY_USER = {
  model: null,
  finish: "edited",
  problem: null,
  statistics: null,
  firstToken: null,
  open: false,
  continued: "",
} as const;

/** Add the results of all calls of an answer, and request the next answer. */
export async function giveResults(message: AnswerMessage, results: string[]): Promise<void> {
  let last: Message = message;
  for (const [place, content] of results.entries()) {
    const call = message.calls[place]?.id ?? "";
    const result: ToolMessage = { ...common(message.conversation, last.id, content), role: "tool", call };
    await put(result);
    last = result;
  }
  await answer(last);
}

/** Replace a result by an edited sibling, with the results beside it, and request the next answer. */
export async function editResult(message: ToolMessage, content: string): Promise<void> {
  const path = shown.value.map((place) => place.message);
  let last: Message = message;
  for (const each of path.slice(path.findIndex(({ id }) => id === message.id))) {
    if (each.role !== "tool") break;
    const isFirst = each.id === message.id;
    const words = isFirst ? content : each.content;
    const result: ToolMessage = { ...each, ...common(each.conversation, isFirst ? each.parent : last.id, words) };
    await put(result);
    last = result;
  }
  await answer(last);
}

/** Generate another answer beside this one, or instead of it if it is empty. */
export async function regenerate(message: AnswerMessage): Promise<void> {
  const parent = message.parent === null ? undefined : messages.value.get(message.parent);
  const empty = !message.content && !message.reasoning && message.calls.length === 0;
  if (parent) await answer(parent, empty ? message.id : newId());
}

export function choose(message: Message): void {
  const current = conversation.value;
  if (current?.id === message.conversation) changeConversation({ chosen: choosing(current.chosen, message) });
}

export function stop(): void {
  atWork.value?.abort.abort();
  if (conversation.value) stopCalls(conversation.value.id);
}

/** Stop the answers of a conversation that is being deleted. */
export function stopAll(conversation: string): void {
  stopCalls(conversation);
  for (const { now, abort } of running.value.values()) {
    if (now.value.answer.conversation === conversation) abort.abort();
  }
}

function common(conversation: string, parent: string | null, content: string) {
  return { id: newId(), conversation, parent, content, created: Date.now() };
}

/** Add a message and show it instead of its siblings. */
async function put(message: Message): Promise<void> {
  batch(() => {
    adopt(message);
    choose(message);
  });
  await store.save(message);
}

async function answer(to: Message, id = newId()): Promise<void> {
  const asked = model.value?.id ?? null;
  const body = await chatRequest(pathTo(messages.value, to.id), settings.value, asked);
  const begun: AnswerMessage = {
    ...common(to.conversation, to.id, ""),
    id,
    role: "assistant",
    model: asked,
    reasoning: "",
    thought: null,
    calls: [],
    finish: null,
    open: true,
    continued: "",
    problem: null,
    statistics: null,
    firstToken: null,
  };
  await generate(begun, body);
}

/** Whether an answer was cut and can be continued. */
export function canContinue({ content, calls, finish, open }: AnswerMessage): boolean {
  return content !== "" && calls.length === 0 && !open && (finish === null || finish === "length");
}

/** Let the model go on with an answer that was stopped, failed or reached the token limit. */
export async function continueAnswer(message: AnswerMessage): Promise<void> {
  const asked = model.value?.id ?? message.model;
  const body = await chatRequest(pathTo(messages.value, message.id), settings.value, asked);
  const begun = { ...message, model: asked, continued: message.content, finish: null, problem: null, open: true };
  await generate(begun, { ...body, prefill_assistant: true });
}

/** Begin another version of an answer with this text, and let the model go on from there. */
export async function branchFrom(message: AnswerMessage, beginning: string): Promise<void> {
  const asked = model.value?.id ?? message.model;
  const begun: AnswerMessage = {
    ...message,
    ...common(message.conversation, message.parent, beginning),
    ...{ model: asked, continued: beginning, finish: null, open: true },
    ...{ calls: [], problem: null, statistics: null, firstToken: null },
  };
  const body = await chatRequest([...pathTo(messages.value, message.parent), begun], settings.value, asked);
  await generate(begun, { ...body, prefill_assistant: true });
}

/** A request for another answer to the same question, by a model of one's choice and with other fields. */
export async function requestBeside(message: AnswerMessage, asked: string, fields: object): Promise<object> {
  return { ...(await chatRequest(pathTo(messages.value, message.parent), settings.value, asked)), ...fields };
}

/** Add an answer that was generated elsewhere as a version of this one, and show it. */
export async function keepBeside(message: AnswerMessage, written: Written, asked: string): Promise<void> {
  const kept = common(message.conversation, message.parent, written.content);
  await put({ ...message, ...written, ...kept, model: asked, continued: "", problem: null, open: false });
}

/** A request for what follows the beginning of an answer, without a stream. */
export async function oneTokenRequest(message: AnswerMessage, beginning: string): Promise<Record<string, unknown>> {
  const path = [...pathTo(messages.value, message.parent), { ...message, content: beginning, calls: [] }];
  const body = await chatRequest(path, settings.value, model.value?.id ?? message.model);
  const { stream_options: _, ...asked } = body;
  return { ...asked, stream: false, ...(beginning !== "" && { prefill_assistant: true }) };
}

async function generate(begun: AnswerMessage, body: Record<string, unknown>): Promise<void> {
  const mine = run(begun, true);
  endCalls(begun.conversation);
  // Not awaited: the answer may start before this is stored.
  void put(begun);
  const answered = await receive(mine, (signal) => startStream(begun.id, body, signal));
  const calls = runsByItself(answered) ? beginCalls(answered.conversation, answered.id) : null;
  await end(answered);
  if (!calls) return;
  try {
    const { runAll } = await import("../tools/ToolCalls");
    await runAll(answered, calls);
  } finally {
    if (callsRunning.peek().get(answered.conversation) === calls) endCalls(answered.conversation);
  }
}

/** Whether the user has allowed all calls of an answer before. */
function runsByItself(answer: AnswerMessage): boolean {
  if (answer.finish !== "tool_calls" || answer.calls.length === 0) return false;
  if (conversation.value?.id !== answer.conversation || shown.value.at(-1)?.message.id !== answer.id) return false;
  const rounds = roundsIn([...pathTo(messages.value, answer.parent), answer]);
  return rounds < MOST_ROUNDS && areAllowed(answer, offered(settings.value), conversation.value.allowed ?? []);
}

/**
 * Read an answer that another tab, or this one before it was reloaded, has requested: the server keeps its stream.
 * The tab that requested it saves it, so this one does so only at the end.
 */
async function readOn(message: AnswerMessage): Promise<void> {
  const ended = await receive(run(message, false), (signal) => streamOf(message.id, signal));
  const stored = (await store.load(ended.conversation))?.messages.find(({ id }) => id === ended.id);
  if (stored?.role === "assistant" && !stored.open) await end(stored, false);
  else await end(ended);
}

async function end(ended: AnswerMessage, save = true): Promise<void> {
  adopt(ended);
  forgetRunning(ended.id);
  if (save) await store.save(ended);
}

/** Whether this page requested the answer. */
export function begunHere(id: string): boolean {
  return running.value.get(id)?.isOurs ?? false;
}

/** Answers that were looked for at the server. Those that it does not know are not looked for again. */
const lookedFor = new Set<string>();
/** A stream is known to the server two seconds after its request at the latest. */
const LOOKS = 4;
const LOOK_EVERY_MS = 1_000;

/** Read on all answers of the open conversation that are being generated for nobody here. */
async function readOnOpen(): Promise<void> {
  if (connection.value.state !== "open") return;
  let open = [...messages.value.values()].filter(
    (message): message is AnswerMessage =>
      message.role === "assistant" && message.open && !running.value.has(message.id) && !lookedFor.has(message.id),
  );
  for (const { id } of open) lookedFor.add(id);
  for (let look = 0; open.length > 0 && look < LOOKS; look++) {
    if (look > 0) await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
    try {
      const known = await knownStreams(open.map(({ id }) => id));
      for (const message of open) if (known.has(message.id)) void readOn(message);
      open = open.filter(({ id }) => !known.has(id));
    } catch {
      for (const { id } of open) lookedFor.delete(id); // until the server can be reached again
      return;
    }
  }
  for (const message of open) adopt({ ...message, open: false });
}

effect(() => {
  if (connection.value.state === "open") untracked(() => void readOnOpen());
});
