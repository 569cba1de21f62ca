import { expect, test } from "vitest";
import type { MediaFile } from "../attachments/types";
import { NOTHING_SET } from "../chat/settings";
import type { Message, UserMessage } from "../chat/tree";
import { copyOf, exported, ImportProblem, imported, type Stored } from "./transfer";

const PARTS = { load: 1, queue: 0, media: 0, restore: 0, prefill: 2, others: 0, decode: 3, overhead: 0 };
const STORED: Stored = {
  conversation: {
    id: "c",
    title: "Horses",
    named: true,
    created: 1,
    updated: 2,
    model: "m",
    settings: { ...NOTHING_SET, system: "Be brief." },
    chosen: { "": "u", u: "a" },
  },
  messages: [
    {
      id: "u",
      conversation: "c",
      parent: null,
      created: 1,
      role: "user",
      content: "Hi",
      attachments: [{ name: "f", text: "t" }],
    },
    {
      id: "a",
      conversation: "c",
      parent: "u",
      created: 2,
      role: "assistant",
      content: "Ho",
      model: "m",
      reasoning: "…",
      thought: 1.5,
      calls: [{ id: "1", name: "f", arguments: "{}" }],
      finish: null,
      open: false,
      continued: "",
      problem: { message: "crashed", status: 200, code: "worker_crashed", param: null, requestId: "r" },
      statistics: { promptTokens: 1, cachedTokens: 0, answerTokens: 2, tokensPerSecond: null, parts: PARTS, waited: 2 },
      firstToken: 0.1,
    },
    { id: "t", conversation: "c", parent: "a", created: 3, role: "tool", content: "42", call: "1" },
  ],
};

const EXPORTED = await exported([STORED], new Date(0));

function file(change: (file: { conversations: Record<string, unknown>[] }) => void): string {
  const text = JSON.parse(EXPORTED);
  change(text);
  return JSON.stringify(text);
}

test("an import restores what was exported", () => {
  expect(imported(EXPORTED)).toEqual([STORED]);
});

test("calls keep what the user and the tool made of them, and no permission is exported", async () => {
  const [asked, answered, ...others] = STORED.messages;
  const calls = [
    { id: "1", name: "f", arguments: "{}", written: "{", result: "Error: x", failed: true },
    { id: "2", name: "f", arguments: "{}", begun: true },
  ];
  const messages = [asked, { ...answered, calls }, ...others] as Message[];
  const allowed = { ...STORED, conversation: { ...STORED.conversation, allowed: ["notes/f"] }, messages };
  const text = await exported([allowed], new Date(0));
  expect(text).not.toContain('"allowed"');
  expect(imported(text)).toEqual([{ ...STORED, messages }]);
  const forged = file(({ conversations }) => Object.assign(conversations[0] ?? {}, { allowed: ["notes/f"] }));
  expect(imported(forged)).toEqual([STORED]);
});

test("images and audio are exported as text and restored byte for byte", async () => {
  const bytes = Uint8Array.from({ length: 20_000 }, (_, index) => (index * 7919) % 256);
  const image = { name: "a.png", kind: "image" as const, data: new Blob([bytes], { type: "image/png" }) };
  const [first, ...others] = STORED.messages;
  const messages = [{ ...first, attachments: [image] } as Message, ...others];
  const [restored] = imported(await exported([{ ...STORED, messages }], new Date()));
  const said = restored?.messages[0] as UserMessage;
  const file = said.attachments[0] as MediaFile;
  expect([file.name, file.kind, file.data.type]).toEqual(["a.png", "image", "image/png"]);
  expect(new Uint8Array(await file.data.arrayBuffer())).toEqual(bytes);
});

test("an invalid file is refused with the place of the error", () => {
  const bad: [string, RegExp][] = [
    ["", /not JSON/],
    ["[]", /must be an object/],
    ["{}", /paddock-conversations/],
    [file((it) => Object.assign(it, { version: 2 })), /Version 2/],
    [file((it) => Object.assign(it, { conversations: {} })), /conversations must be a list/],
    [file((it) => Object.assign(it.conversations[0] ?? {}, { title: 7 })), /conversations\[0\]\.title must be a text/],
    [file((it) => it.conversations.push(it.conversations[0] ?? {})), /same id/],
    [withMessage(1, { role: "system" }), /conversations\[0\]\.messages\[1\]\.role/],
    [withMessage(1, { parent: "gone" }), /gone is named as a parent and missing/],
    [withMessage(0, { parent: "t" }), /comes after itself/],
    [withMessage(0, { attachments: [{ name: "f", kind: "image", data: "https://x" }] }), /data of an image/],
    [
      withMessage(0, { attachments: [{ name: "f", kind: "image", data: "data:audio/wav;base64,QQ==" }] }),
      /of an image/,
    ],
    [withMessage(0, { attachments: [{ name: "f" }] }), /messages\[0\]\.attachments\[0\]\.text must be a text/],
  ];
  for (const [text, words] of bad) {
    expect(() => imported(text)).toThrow(ImportProblem);
    expect(() => imported(text)).toThrow(words);
  }
});

function withMessage(place: number, fields: Record<string, unknown>): string {
  return file(({ conversations: [first] }) =>
    Object.assign((first as { messages: object[] }).messages[place] ?? {}, fields),
  );
}

test("a copy has the same content and other ids", () => {
  let count = 0;
  const copy = copyOf(STORED, () => `new${count++}`);
  const ids = [copy.conversation.id, ...copy.messages.map(({ id }) => id)];
  expect(new Set([...ids, "c", "u", "a", "t"]).size).toBe(8);
  expect(copy.messages.map(({ parent }) => parent)).toEqual([null, ids[1], ids[2]]);
  expect(copy.conversation.chosen).toEqual({ "": ids[1], [ids[1] as string]: ids[2] });
});
