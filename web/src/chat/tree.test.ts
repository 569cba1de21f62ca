import { expect, test } from "vitest";
import { branch, choosing, type Messages, pathTo, titleOf, type UserMessage } from "./tree";

function tree(...parents: [id: string, parent: string | null][]): Messages {
  return new Map(
    parents.map(([id, parent], created): [string, UserMessage] => [
      id,
      { id, parent, conversation: "c", created, content: id, role: "user", attachments: [] },
    ]),
  );
}

const ids = (places: { message: { id: string } }[]) => places.map(({ message }) => message.id).join("");

const FORKED = tree(["a", null], ["b", "a"], ["c", "b"], ["d", "a"], ["e", "d"], ["f", "d"]);

test("without a choice the newest branch is shown", () => {
  expect(ids(branch(FORKED, {}))).toBe("adf");
});

test("a choice shows another branch and keeps the choices below it", () => {
  const b = FORKED.get("b");
  const e = FORKED.get("e");
  if (!b || !e) throw new Error("they are there");
  const chosen = choosing(choosing({}, e), b);
  expect(ids(branch(FORKED, chosen))).toBe("abc");
  const { b: _, ...rest } = chosen;
  expect(ids(branch(FORKED, { ...rest, a: "d" }))).toBe("ade");
});

test("siblings are ordered by age, whatever their order in the store", () => {
  const reversed = new Map([...FORKED].reverse());
  expect(branch(reversed, {})[1]?.siblings.map(({ id }) => id)).toEqual(["b", "d"]);
});

test("a choice of a deleted message is ignored", () => {
  expect(ids(branch(FORKED, { a: "gone" }))).toBe("adf");
});

test("a first message can have siblings too", () => {
  expect(ids(branch(tree(["a", null], ["b", null]), { "": "a" }))).toBe("a");
});

test("a path goes from the first message to the given one", () => {
  expect(pathTo(FORKED, "e").map(({ id }) => id)).toEqual(["a", "d", "e"]);
  expect(pathTo(FORKED, null)).toEqual([]);
});

test("titles are the first words and end between two words", () => {
  expect(titleOf("  # What *is* it?\n\nTell me ")).toBe("What is it? Tell me");
  expect(titleOf("word ".repeat(50))).toBe(`${"word ".repeat(11)}word…`);
  expect(titleOf("x".repeat(200)).length).toBeLessThanOrEqual(61);
  expect(titleOf("")).toBe("New chat");
});
