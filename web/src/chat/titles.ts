/** Titles that the model writes for new conversations, while nothing else is generated here. */

import { effect, signal } from "@preact/signals";
import { postJson } from "../api/client";
import * as store from "../history/store";
import { TEXT } from "../text";
import { requestedHere, running } from "./receiving";
import { chatRequest } from "./request";
import { conversation, messages, settings } from "./state";
import { type Message, type Messages, pathTo, titleOf } from "./tree";

const NAME = "paddock.titles";
const IDLE_MS = 2_000;
const MOST_TOKENS = 24;

export const makesTitles = signal(localStorage.getItem(NAME) !== "off");

export function switchTitles(on: boolean): void {
  makesTitles.value = on;
  localStorage.setItem(NAME, on ? "on" : "off");
}

/** The answer that the title is made of: the only one of a conversation, if it is complete. */
export function answerToName(all: Messages): Message | null {
  const answers = [...all.values()].filter((message) => message.role === "assistant");
  const [only] = answers;
  return answers.length === 1 && only?.role === "assistant" && only.finish === "stop" && only.content ? only : null;
}

/** The title in a reply, without what models add to it. */
export function titleIn(reply: string): string | null {
  const line = reply
    .replace(/<think>[\s\S]*?(<\/think>|$)/g, "")
    .split("\n")
    .map((each) => each.replace(/^[\s#*"'“”]*(?:title\s*:)?[\s*"'“”]*/i, "").replace(/[\s*"'“”.]*$/, ""))
    .find(Boolean);
  return line ? titleOf(line) : null;
}

const tried = new Set<string>();

/** The prompt continues the conversation, so that the server computes only the last message. */
async function name(id: string): Promise<void> {
  const answer = answerToName(messages.value);
  if (conversation.value?.id !== id || conversation.value.named || !answer || answer.role !== "assistant") return;
  tried.add(id);
  const path = pathTo(messages.value, answer.id);
  const asked = { ...answer, id: "title", role: "user" as const, content: TEXT.history.titlePrompt, attachments: [] };
  const { messages: sent, model } = await chatRequest([...path, asked], settings.value, answer.model);
  const body = { model, messages: sent, max_tokens: MOST_TOKENS, temperature: 0, enable_thinking: false };
  const reply = await postJson<{ choices: { message: { content: string } }[] }>("/v1/chat/completions", body);
  const title = titleIn(reply.choices[0]?.message.content ?? "");
  const now = (await store.load(id))?.conversation;
  if (!title || !now || now.named) return;
  if (conversation.value?.id === id) conversation.value = { ...conversation.value, title };
  await store.change(id, { title });
}

export function watchForTitles(): void {
  let timer = 0;
  effect(() => {
    const open = conversation.value;
    clearTimeout(timer);
    if (!makesTitles.value || !open || open.named || tried.has(open.id) || running.value.size > 0) return;
    if (!requestedHere.has(answerToName(messages.value)?.id ?? "")) return;
    // A title is worth no error.
    timer = setTimeout(() => void name(open.id).catch(() => undefined), IDLE_MS) as unknown as number;
  });
}
