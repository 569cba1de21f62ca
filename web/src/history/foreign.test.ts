import { expect, test } from "vitest";
import { branch, type Message } from "../chat/tree";
import { foreign } from "./foreign";
import { imported } from "./transfer";

const shownOf = (stored: NonNullable<ReturnType<typeof foreign>>[number]) => {
  const messages = new Map(stored.messages.map((message: Message) => [message.id, message]));
  return branch(messages, stored.conversation.chosen).map(({ message }) => message.content);
};

const LLAMA = [
  {
    conv: { id: "c", name: "Horses", lastModified: 20, currNode: "a1" },
    messages: [
      { id: "r", convId: "c", type: "root", timestamp: 1, role: "system", content: "", parent: null, children: ["s"] },
      { id: "s", type: "system", timestamp: 1, role: "system", content: "Be brief.", parent: "r", children: ["u"] },
      {
        ...{ id: "u", type: "text", timestamp: 2, role: "user", content: "Hi", parent: "s", children: ["a1", "a2"] },
        extra: [
          { type: "TEXT", name: "t.txt", content: "x" },
          { type: "IMAGE", name: "i.png", base64Url: "data:image/png;base64,eA==" },
          { type: "AUDIO", name: "s.mp3", base64Data: "eA==", mimeType: "audio/mp3" },
          { type: "PDF", name: "p.pdf", base64Data: "eA==", content: "pages", processedAsImages: false },
        ],
      },
      {
        id: "a1",
        type: "text",
        timestamp: 3,
        role: "assistant",
        content: "One",
        parent: "u",
        thinking: "Hm",
        model: "m",
      },
      { id: "a2", type: "text", timestamp: 4, role: "assistant", content: "Two", parent: "u" },
    ],
  },
];

test("llama.cpp's export becomes conversations with their branches and files", () => {
  const [stored] = foreign(LLAMA) ?? [];
  if (!stored) throw new Error("nothing was read");
  expect(stored.conversation).toMatchObject({ id: "c", title: "Horses", updated: 20, named: true });
  expect(stored.conversation.settings.system).toBe("Be brief.");
  expect(shownOf(stored)).toEqual(["Hi", "One"]);
  expect(stored.messages).toHaveLength(3);
  const [said, first] = stored.messages;
  expect(said).toMatchObject({ parent: null });
  expect(said?.role === "user" && said.attachments.map((file) => ("data" in file ? file.kind : file.text))).toEqual([
    "x",
    "image",
    "audio",
    "pages",
  ]);
  expect(first).toMatchObject({ reasoning: "Hm", model: "m" });
  expect(foreign(LLAMA[0])).toHaveLength(1);
});

test("Open WebUI's export becomes conversations, with reasoning apart from the text", () => {
  const details =
    '<details type="reasoning" done="true" duration="2">\n<summary>Thought</summary>\n> Let me\n> see.\n</details>\n';
  const messages = {
    u: { id: "u", parentId: null, childrenIds: ["a"], role: "user", content: "Hi", timestamp: 10 },
    a: { id: "a", parentId: "u", role: "assistant", content: `${details}Hello`, model: "m", timestamp: 11 },
  };
  const chat = { title: "T", history: { currentId: "a", messages }, models: ["m"] };
  const [stored] = foreign([{ id: "c", title: "T", chat, created_at: 10, updated_at: 12, pinned: true }]) ?? [];
  if (!stored) throw new Error("nothing was read");
  expect(stored.conversation).toMatchObject({ title: "T", created: 10_000, updated: 12_000, pinned: true, model: "m" });
  expect(shownOf(stored)).toEqual(["Hi", "Hello"]);
  expect(stored.messages[1]).toMatchObject({ reasoning: "Let me\nsee." });
});

test("any other file is refused, and a cycle ends", () => {
  for (const value of [[], {}, 7, null, [{ conv: 1 }], [{ chat: {} }]]) expect(foreign(value)).toBeNull();
  expect(() => imported("{}")).toThrow(/Open WebUI/);
  const circle = { conv: { id: "c", name: "", currNode: "a" }, messages: [] as object[] };
  circle.messages = [
    { id: "a", role: "user", content: "x", parent: "b" },
    { id: "b", role: "system", content: "x", parent: "a" },
  ];
  expect(() => imported(JSON.stringify(circle))).toThrow(/comes after itself/);
});
