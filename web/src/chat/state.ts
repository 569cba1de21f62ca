/** The open conversation, its settings and its model. */

import { computed, signal } from "@preact/signals";
import * as store from "../history/store";
import { preferred } from "../models/models";
import { talkers } from "../models/watching";
import { library } from "../settings/library";
import { filled, NOTHING_SET, parsed, type Settings } from "./settings";
import { branch, type Conversation, type Message, type Messages } from "./tree";

export const conversation = signal<Conversation | null>(null);
export const messages = signal<Messages>(new Map());
export const shown = computed(() => branch(messages.value, conversation.value?.chosen ?? {}));

/** The id of the conversation that is shown, or will be as soon as it is loaded; null: a new one. */
export const wanted = signal<string | null>(null);

const MODEL = "paddock.model";
const draftModel = signal<string | null>(localStorage.getItem(MODEL));
export const model = computed(() => preferred(talkers.value, conversation.value?.model ?? draftModel.value));

/** The settings of the next conversation; null: the defaults of its model. No other conversation has them. */
const draft = signal<Settings | null>(null);
/** What a new chat with the current model starts with. */
export const usualSettings = computed(() => library.value.defaults[model.value?.id ?? ""] ?? NOTHING_SET);
export const settings = computed(() => {
  // One that is stored may be older than some fields.
  if (conversation.value) return filled(conversation.value.settings) ?? NOTHING_SET;
  return draft.value ?? usualSettings.value;
});
/** The errors in them, by field. Nothing is sent until they are fixed. */
export const settingsProblems = computed(() => parsed(settings.value).problems);

export function changeSettings(changed: Settings): void {
  if (conversation.value) changeConversation({ settings: changed });
  else draft.value = changed;
}

/** The settings and the model of a conversation that begins. The next one starts with the defaults again. */
export function takeDraft(): Pick<Conversation, "model" | "settings"> {
  const taken = { model: model.value?.id ?? null, settings: settings.value };
  draft.value = null;
  return taken;
}

export function chooseModel(id: string): void {
  draftModel.value = id;
  localStorage.setItem(MODEL, id);
  changeConversation({ model: id });
}

export function changeConversation(fields: Partial<Conversation>): void {
  const current = conversation.value;
  if (!current) return;
  conversation.value = { ...current, ...fields };
  void store.change(current.id, fields);
}

/** Show a message of the open conversation as it is now. */
export function adopt(message: Message): void {
  if (conversation.value?.id === message.conversation) {
    messages.value = new Map(messages.value).set(message.id, message);
  }
}
