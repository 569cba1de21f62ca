/** The open conversation, and all answers that this tab receives, also those of other conversations. */

import { batch, computed, effect, type Signal, signal, untracked } from "@preact/signals";
import { ApiError, unreachable } from "../api/client";
import { href } from "../app/route";
import type { Attachment } from "../attachments/types";
import * as store from "../history/store";
import { preferred } from "../models/models";
import { connection, loadFailed, talkers } from "../models/watching";
import { TEXT } from "../text";
import { AnswerBuilder, type Chunk, type Progress } from "./answer";
import { newId } from "./ids";
import { chatRequest } from "./request";
import { NOTHING_SET, parsed, type Settings } from "./settings";
import { follow, forget, knownStreams, type Start, startStream, streamOf, untilAborted } from "./streams";
import {
  type AnswerMessage,
  branch,
  type Conversation,
  choosing,
  type Message,
  type Messages,
  pathTo,
  type ToolMessage,
  titleOf,
  type UserMessage,
} from "./tree";

export const conversation = signal<Conversation | null>(null);
export const messages = signal<Messages>(new Map());
export const shown = computed(() => branch(messages.value, conversation.value?.chosen ?? {}));

export interface Writing {
  answer: AnswerMessage;
  progress: Progress | null;
}

interface Running {
  now: Signal<Writing>;
  /** Stops the answer. */
  abort: AbortController;
  /** This page requested it. */
  isOurs: boolean;
}

/** The answers that this tab receives, by id. */
export const running = signal<ReadonlyMap<string, Running>>(new Map());

/** The settings of a new conversation: those that were used last. */
const DRAFT = "paddock.settings";
const MODEL = "paddock.model";
const draft = signal<Settings>(remembered());
const draftModel = signal<string | null>(localStorage.getItem(MODEL));

export const settings = computed(() => conversation.value?.settings ?? draft.value);
/** The errors in them, by field. Nothing is sent until they are fixed. */
export const settingsProblems = computed(() => parsed(settings.value).problems);
export const model = computed(() => preferred(talkers.value, conversation.value?.model ?? draftModel.value));

/** The answer at the end of the shown branch, while it is generated. */
export const atWork = computed(() => {
  const last = shown.value.at(-1)?.message;
  return last ? (running.value.get(last.id) ?? null) : null;
});

const SAVED_EVERY_MS = 500;
/** How often a lost connection of one answer is opened again. */
const RECONNECTS = 20;

function remembered(): Settings {
  try {
    return { ...NOTHING_SET, ...JSON.parse(localStorage.getItem(DRAFT) ?? "{}") };
  } catch {
    return NOTHING_SET;
  }
}

/** The id of the conversation that is shown, or will be as soon as it is loaded; null: a new one. */
export const wanted = signal<string | null>(null);

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

export function changeSettings(changed: Settings): void {
  draft.value = changed;
  localStorage.setItem(DRAFT, JSON.stringify(changed));
  changeConversation({ settings: changed });
}

export function chooseModel(id: string): void {
  draftModel.value = id;
  localStorage.setItem(MODEL, id);
  changeConversation({ model: id });
}

function changeConversation(fields: Partial<Conversation>): void {
  const current = conversation.value;
  if (!current) return;
  conversation.value = { ...current, ...fields };
  void store.change(current.id, fields);
}

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
    model: model.value?.id ?? null,
    settings: draft.value,
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
}

/** Stop the answers of a conversation that is being deleted. */
export function stopAll(conversation: string): void {
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

function adopt(message: Message): void {
  if (conversation.value?.id === message.conversation) {
    messages.value = new Map(messages.value).set(message.id, message);
  }
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

async function generate(begun: AnswerMessage, body: Record<string, unknown>): Promise<void> {
  const mine = run(begun, true);
  // Not awaited: the answer may start before this is stored.
  void put(begun);
  await end(await receive(mine, (signal) => startStream(begun.id, body, signal)));
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

function run(begun: AnswerMessage, isOurs: boolean): Running {
  const mine: Running = { now: signal({ answer: begun, progress: null }), abort: new AbortController(), isOurs };
  running.value = new Map(running.value).set(begun.id, mine);
  return mine;
}

async function end(ended: AnswerMessage, save = true): Promise<void> {
  adopt(ended);
  const left = new Map(running.value);
  left.delete(ended.id);
  running.value = left;
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

/** Receive an answer. It is shown once per frame, and saved while it arrives. */
async function receive({ now, abort, isOurs }: Running, start: Start): Promise<AnswerMessage> {
  const begun = now.value.answer;
  const asked = performance.now() / 1000;
  let builder = new AnswerBuilder(asked);
  const written = (): AnswerMessage => {
    const written = builder.written(performance.now() / 1000);
    const reasoning = written.reasoning || begun.reasoning;
    const content = (begun.continued ?? "") + written.content;
    const answer: AnswerMessage = { ...begun, ...written, content, reasoning };
    // The times are known only to the tab that requested it.
    return isOurs ? answer : { ...answer, firstToken: begun.firstToken, thought: begun.thought };
  };
  const frames = new Frames(() => {
    const answer = written();
    // A stream that is read again shows nothing until it is where it was.
    if (answer.content.length >= now.value.answer.content.length) now.value = { answer, progress: builder.progress };
  });
  const save = () => void store.save(written());
  const saving = isOurs ? setInterval(save, SAVED_EVERY_MS) : 0;
  if (isOurs) addEventListener("pagehide", save);
  const told = (chunk: Chunk) => {
    builder.feed(chunk, performance.now() / 1000);
    frames.ask();
  };
  try {
    if (isOurs) refuseMistakes();
    let isWhole = await untilAborted(follow(start, abort.signal, told), abort.signal);
    for (let tries = 0; !isWhole && tries < RECONNECTS && (await knownStreams([begun.id])).has(begun.id); tries++) {
      builder = new AnswerBuilder(asked);
      isWhole = await untilAborted(
        follow((signal) => streamOf(begun.id, signal), abort.signal, told),
        abort.signal,
      );
    }
    // If the server no longer knows it, another tab has stopped it.
    return { ...written(), open: false };
  } catch (error) {
    if (abort.signal.aborted) {
      forget(begun.id);
      return { ...written(), finish: null, open: false };
    }
    const problem = error instanceof ApiError ? error : unreachable();
    if (begun.model && ["model_load_failed", "out_of_memory"].includes(problem.code ?? "")) {
      loadFailed(begun.model, problem.message);
    }
    const { message, status, code, param, requestId } = problem;
    return { ...written(), finish: null, open: false, problem: { message, status, code, param, requestId } };
  } finally {
    frames.end();
    clearInterval(saving);
    removeEventListener("pagehide", save);
  }
}

/** An invalid setting must not be dropped: the answer would differ from what the user requested. */
function refuseMistakes(): void {
  for (const [field, problem] of Object.entries(settingsProblems.value)) {
    throw new ApiError(TEXT.message.settingsInvalid(problem), 0, null, field);
  }
}

/** Calls back at most once per frame. In the background, which has no frames, a timer calls. */
class Frames {
  private asked = false;
  private ended = false;

  constructor(private readonly show: () => void) {}

  ask(): void {
    if (this.asked) return;
    this.asked = true;
    if (document.hidden) setTimeout(() => this.happen(), 250);
    else requestAnimationFrame(() => this.happen());
  }

  end(): void {
    this.ended = true;
  }

  private happen(): void {
    this.asked = false;
    if (!this.ended) this.show();
  }
}
