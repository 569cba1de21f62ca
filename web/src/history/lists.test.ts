import { expect, test } from "vitest";
import { NOTHING_SET } from "../chat/settings";
import type { Conversation, Message } from "../chat/tree";
import { periods } from "./periods";
import { found } from "./search";

function conversation(id: string, title: string, updated: Date): Conversation {
  const time = updated.getTime();
  return { id, title, named: false, created: time, updated: time, model: null, settings: NOTHING_SET, chosen: {} };
}

const NOW = new Date(2026, 2, 31, 9);
const ALL = [
  conversation("1", "Old horses", new Date(2025, 11, 24)),
  conversation("2", "Bicycles", new Date(2026, 2, 30, 23, 59)),
  conversation("3", "Gates", NOW),
  // Where clocks change, a day between them is an hour shorter.
  conversation("4", "Hills", new Date(2026, 2, 25, 1)),
];

test("conversations are listed by the calendar, newest first", () => {
  expect(periods(ALL, NOW).map(({ name, conversations }) => [name, ...conversations.map(({ id }) => id)])).toEqual([
    ["Today", "3"],
    ["Yesterday", "2"],
    ["Last 7 days", "4"],
    ["December 2025", "1"],
  ]);
});

test("all words must occur in the title or the texts, in any case", () => {
  const said = (id: string, content: string) => ({ conversation: id, content }) as Message;
  const messages = [said("2", "A saddle\nfor a HORSE"), said("2", "of steel"), said("3", "horse")];
  const ids = (query: string) => found(query, ALL, messages).map(({ conversation: { id } }) => id);
  expect(ids("horse")).toEqual(["1", "2", "3"]);
  expect(ids("bicycles STEEL")).toEqual(["2"]);
  expect(ids("horse steel gates")).toEqual([]);
  expect(found("horse", ALL, messages)[1]?.excerpt).toBe("A saddle for a HORSE of steel");
  expect(found("old", ALL, messages)[0]?.excerpt).toBeNull();
});
