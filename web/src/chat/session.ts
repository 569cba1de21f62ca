/** The open conversation, and all answers that this tab receives, also those of other conversations. */

import { batch, computed, type Signal, signal } from "@preact/signals";
import { ApiError, errorOf, postEvents, unreachable } from "../api/client";
import { href } from "../app/route";
import * as store from "../history/store";
import { preferred } from "../models/models";
import { loadFailed, talkers } from "../models/watching";
import { AnswerBuilder, type Chunk, type Progress } from "./answer";
import { newId } from "./ids";
import { requestBody } from "./request";
import { NOTHING_SET, parsed, type Settings } from "./settings";
import {
  type AnswerMessage,
  type Attachment,
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
  abort: AbortController;
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

function remembered(): Settings {
  try {
    return { ...NOTHING_SET, ...JSON.parse(localStorage.getItem(DRAFT) ?? "{}") };
  } catch {
    return NOTHING_SET;
  }
}

/** The conversation that was requested last. If two load at the same time, this one is shown. */
let wanted: string | null = null;

export async function open(id: string | null): Promise<void> {
  wanted = id;
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
  wanted = id;
  const stored = await store.load(id);
  if (wanted !== id) return;
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
  else await put({ ...message, ...common(current.id, message.parent, content) });
}

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

/** Stop saving a conversation that is being deleted. */
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
  const body = requestBody(pathTo(messages.value, to.id), settings.value, asked);
  const begun: AnswerMessage = {
    ...common(to.conversation, to.id, ""),
    id,
    role: "assistant",
    model: asked,
    reasoning: "",
    thought: null,
    calls: [],
    finish: null,
    problem: null,
    statistics: null,
    firstToken: null,
  };
  const mine: Running = { now: signal({ answer: begun, progress: null }), abort: new AbortController() };
  running.value = new Map(running.value).set(begun.id, mine);
  // Not awaited: the answer may start before this is stored.
  void put(begun);
  const ended = await receive(mine, body);
  adopt(ended);
  const left = new Map(running.value);
  left.delete(ended.id);
  running.value = left;
  await store.save(ended);
}

/** Receive an answer. It is shown once per frame, and saved while it arrives. */
async function receive({ now, abort }: Running, body: Record<string, unknown>): Promise<AnswerMessage> {
  const begun = now.value.answer;
  const builder = new AnswerBuilder(performance.now() / 1000);
  const written = (): AnswerMessage => ({ ...begun, ...builder.written(performance.now() / 1000) });
  const frames = new Frames(() => {
    now.value = { answer: written(), progress: builder.progress };
  });
  const save = () => void store.save(written());
  const saving = setInterval(save, SAVED_EVERY_MS);
  addEventListener("pagehide", save);
  try {
    refuseMistakes();
    await follow(body, abort.signal, (chunk) => {
      builder.feed(chunk, performance.now() / 1000);
      frames.ask();
    });
    return written();
  } catch (error) {
    if (abort.signal.aborted) return { ...written(), finish: null };
    const problem = error instanceof ApiError ? error : unreachable();
    if (begun.model && ["model_load_failed", "out_of_memory"].includes(problem.code ?? "")) {
      loadFailed(begun.model, problem.message);
    }
    const { message, status, code, param, requestId } = problem;
    return { ...written(), finish: null, problem: { message, status, code, param, requestId } };
  } finally {
    frames.end();
    clearInterval(saving);
    removeEventListener("pagehide", save);
  }
}

/** An invalid setting must not be dropped: the answer would differ from what the user requested. */
function refuseMistakes(): void {
  for (const [field, problem] of Object.entries(settingsProblems.value)) {
    throw new ApiError(`The settings are invalid: ${problem}.`, 0, null, field);
  }
}

/** How long events are processed at once if they arrive faster than they can be shown. */
const PATIENCE_MS = 8;

async function follow(body: unknown, signal: AbortSignal, told: (chunk: Chunk) => void): Promise<void> {
  let until = performance.now() + PATIENCE_MS;
  for await (const { event, data } of postEvents("/v1/chat/completions", body, signal)) {
    if (performance.now() > until) {
      await new Promise((resolve) => setTimeout(resolve));
      until = performance.now() + PATIENCE_MS;
    }
    if (event === "error") throw errorOf(JSON.parse(data), 200);
    if (data === "[DONE]") return;
    told(JSON.parse(data));
  }
  throw new ApiError("The connection was lost before the answer was complete.", 0);
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
