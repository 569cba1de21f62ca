import { expect, test, vi } from "vitest";
import { NOTHING_SET } from "../chat/settings";
import type { Conversation, Message } from "../chat/tree";
import { asMarkdown } from "./markdownExport";
import { foldersOf, sections } from "./periods";

vi.stubGlobal("localStorage", { getItem: () => null, setItem: () => undefined });
vi.stubGlobal("location", { hash: "" });
vi.stubGlobal("addEventListener", () => undefined);
vi.stubGlobal("sessionStorage", { getItem: () => null });

const NOW = new Date(2026, 2, 31, 9);
function conversation(id: string, more: Partial<Conversation> = {}): Conversation {
  const updated = NOW.getTime() + Number(id);
  const common = { named: false, created: 0, model: null, settings: NOTHING_SET, chosen: {} };
  return { id, title: `T${id}`, updated, ...common, ...more };
}

test("pinned ones come first, then folders, then the others by time", () => {
  const all = [
    conversation("1"),
    conversation("2", { folder: "Work" }),
    conversation("3", { folder: "home" }),
    conversation("4", { folder: "Work", pinned: true }),
    conversation("5", { folder: "Work" }),
    conversation("6", { folder: "" }),
  ];
  expect(sections(all, NOW).map(({ name, conversations }) => [name, ...conversations.map(({ id }) => id)])).toEqual([
    ["Pinned", "4"],
    ["home", "3"],
    ["Work", "5", "2"],
    ["Today", "6", "1"],
  ]);
  expect(foldersOf(all)).toEqual(["home", "Work"]);
});

test("the shown branch becomes Markdown", () => {
  const common = { conversation: "1", created: 1 };
  const answer = { ...common, role: "assistant", reasoning: "", calls: [] };
  const messages = [
    { ...common, id: "u", parent: null, role: "user", content: "Hi", attachments: [{ name: "f", text: "x" }] },
    { ...answer, id: "a", parent: "u", content: "**One**", model: "m", reasoning: "Let me\nsee." },
    { ...answer, id: "b", parent: "u", content: "Two", model: "m" },
  ] as unknown as Message[];
  const settings = { ...NOTHING_SET, system: "Be brief." };
  const stored = { conversation: conversation("1", { chosen: { u: "a" }, settings }), messages };
  expect(asMarkdown(stored)).toBe(
    "# T1\n\n## System prompt\n\nBe brief.\n\n## You\n\nf:\n```\nx\n```\n\nHi\n\n## m\n\n> Let me\n> see.\n\n**One**\n",
  );
});

test("a title is taken out of a model's reply", async () => {
  vi.stubGlobal(
    "BroadcastChannel",
    class {
      addEventListener() {}
    },
  );
  vi.stubGlobal("document", { documentElement: { dataset: {} } });
  vi.stubGlobal("navigator", { onLine: true });
  const { answerToName, titleIn } = await import("../chat/titles");
  expect(titleIn('"A Horse at the Gate."')).toBe("A Horse at the Gate");
  expect(titleIn("**Title: Horses**\n\nmore")).toBe("Horses");
  expect(titleIn("<think>\nHm</think>\n# Horses")).toBe("Horses");
  expect(titleIn("<think>never ends")).toBeNull();
  const answer = { id: "a", role: "assistant", content: "x", finish: "stop" } as Message;
  expect(answerToName(new Map([["a", answer]]))).toBe(answer);
  expect(answerToName(new Map([["a", { ...answer, finish: "length" } as Message]]))).toBeNull();
  expect(
    answerToName(
      new Map([
        ["a", answer],
        ["b", { ...answer, id: "b" }],
      ]),
    ),
  ).toBeNull();
});
