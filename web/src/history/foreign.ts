/** Conversations that llama.cpp's page and Open WebUI exported. What they have and this page has not is left out. */

import { fileOf } from "../attachments/encoding";
import type { Attachment } from "../attachments/types";
import { NOTHING_SET } from "../chat/settings";
import type { AnswerMessage, Conversation, Message } from "../chat/tree";
import type { Stored } from "./transfer";

type Fields = Record<string, unknown>;

/** The conversations of a file in one of these formats; null: it is in neither. */
export function foreign(value: unknown): Stored[] | null {
  const entries = (Array.isArray(value) ? value : [value]).filter(isFields);
  if (entries.length === 0) return null;
  if (entries.every((entry) => isFields(entry.conv) && Array.isArray(entry.messages))) return entries.map(fromLlama);
  if (entries.every((entry) => isFields(entry.chat) && isFields(entry.chat.history))) return entries.map(fromOpenWebUi);
  return null;
}

// ── llama.cpp ────────────────────────────────────────────────────────────────────────────────────────────────────────

function fromLlama({ conv, messages }: Fields): Stored {
  const { id, name, lastModified, currNode } = conv as Fields;
  const found = (messages as unknown[]).filter(isFields);
  const system = found.find(({ role, type }) => role === "system" && type !== "root");
  return stored(
    { id: text(id), title: text(name), created: number(found[0]?.timestamp), updated: number(lastModified) },
    found.map((message) => ({
      id: text(message.id),
      parent: text(message.parent),
      role: message.type === "root" ? "root" : text(message.role),
      content: text(message.content),
      created: number(message.timestamp),
      model: text(message.model),
      reasoning: text(message.reasoningContent) || text(message.thinking),
      attachments: (Array.isArray(message.extra) ? message.extra.filter(isFields) : []).flatMap(llamaFile),
    })),
    text(system?.content),
    text(currNode),
  );
}

function llamaFile({ name, content, base64Url, base64Data, mimeType }: Fields): Attachment[] {
  const title = text(name) || "file";
  if (typeof base64Url === "string") return mediaFile(title, base64Url);
  if (typeof content === "string" && content !== "") return [{ name: title, text: content }];
  return typeof base64Data === "string" ? mediaFile(title, `data:${text(mimeType)};base64,${base64Data}`) : [];
}

function mediaFile(name: string, url: string): Attachment[] {
  const data = fileOf(url.replace(/^data:audio\/(mp3|x-wav|wave);/, (_, kind) => `data:audio/${AUDIO[kind]};`));
  return data ? [{ name, kind: data.type.startsWith("image/") ? "image" : "audio", data }] : [];
}

const AUDIO: Record<string, string> = { mp3: "mpeg", "x-wav": "wav", wave: "wav" };

// ── Open WebUI ───────────────────────────────────────────────────────────────────────────────────────────────────────

function fromOpenWebUi({ id, title, chat, created_at, updated_at, pinned }: Fields): Stored {
  const { history, system } = chat as { history: Fields; system?: unknown };
  const found = Object.values(isFields(history.messages) ? history.messages : {}).filter(isFields);
  return stored(
    {
      id: text(id) || text((chat as Fields).id),
      title: text(title) || text((chat as Fields).title),
      created: 1000 * number(created_at),
      updated: 1000 * number(updated_at),
      pinned: pinned === true,
    },
    found.map((message) => {
      const { reasoning, content } = withoutDetails(text(message.content));
      const files = Array.isArray(message.files) ? message.files.filter(isFields) : [];
      return {
        id: text(message.id),
        parent: text(message.parentId),
        role: text(message.role),
        content,
        created: 1000 * number(message.timestamp),
        model: text(message.model),
        reasoning,
        attachments: files.flatMap((file) =>
          file.type === "image" ? mediaFile(text(file.name) || "image", text(file.url)) : [],
        ),
      };
    }),
    text(system),
    text(history.currentId),
  );
}

const DETAILS = /<details type="reasoning"[^>]*>\s*(?:<summary>[^<]*<\/summary>)?([\s\S]*?)<\/details>\s*/g;

/** Open WebUI keeps reasoning in the text, quoted. */
function withoutDetails(whole: string): { reasoning: string; content: string } {
  const thoughts = [...whole.matchAll(DETAILS)].map(([, inside]) =>
    (inside ?? "").replace(/^(?:>|&gt;) ?/gm, "").trim(),
  );
  return { reasoning: thoughts.join("\n\n"), content: whole.replace(DETAILS, "") };
}

// ── both ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

interface Found {
  id: string;
  parent: string;
  role: string;
  content: string;
  created: number;
  model: string;
  reasoning: string;
  attachments: Attachment[];
}

function stored(
  about: Pick<Conversation, "id" | "title" | "created" | "updated" | "pinned">,
  found: Found[],
  system: string,
  current: string,
): Stored {
  const known = new Map(found.filter(({ id }) => id !== "").map((message) => [message.id, message]));
  const isKept = ({ role }: Found) => role === "user" || role === "assistant";
  /** The nearest message above it that is kept. */
  const parentOf = (message: Found): string | null => {
    const passed = new Set<string>();
    for (let at = known.get(message.parent); at && !passed.has(at.id); at = known.get(at.parent)) {
      if (isKept(at)) return at.id;
      passed.add(at.id);
    }
    return null;
  };
  const messages = [...known.values()].filter(isKept).map((message): Message => {
    const { id, content, created, model, reasoning, attachments } = message;
    const common = { id, conversation: about.id, parent: parentOf(message), created, content };
    if (message.role === "user") return { ...common, role: "user", attachments };
    return { ...common, role: "assistant", ...ANSWER, model: model || null, reasoning };
  });
  const chosen: Record<string, string> = {};
  const byId = new Map(messages.map((message) => [message.id, message]));
  const passed = new Set<string>();
  for (let at = byId.get(current); at && !passed.has(at.id); at = byId.get(at.parent ?? "")) {
    passed.add(at.id);
    chosen[at.parent ?? ""] = at.id;
  }
  const last = messages.filter((message): message is AnswerMessage => message.role === "assistant").at(-1);
  const conversation: Conversation = {
    ...about,
    title: about.title || "Untitled",
    named: true,
    model: last?.model ?? null,
    settings: { ...NOTHING_SET, system },
    chosen,
  };
  return { conversation, messages };
}

const ANSWER = {
  thought: null,
  calls: [],
  finish: "stop",
  open: false,
  continued: "",
  problem: null,
  statistics: null,
  firstToken: null,
};

function isFields(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function number(value: unknown): number {
  return typeof value === "number" && Number.isFinite(value) ? value : 0;
}
