import { expect, test } from "vitest";
import { changes } from "./choice";
import { diff } from "./diff";

const only = (kind: string, before: string, after: string) =>
  diff(before, after)
    .filter((part) => part.kind === "same" || part.kind === kind)
    .map(({ text }) => text)
    .join("");

test("changed words are told from those that stay", () => {
  expect(diff("the grey mare grazes", "the old mare sleeps")).toEqual([
    { kind: "same", text: "the " },
    { kind: "removed", text: "grey" },
    { kind: "added", text: "old" },
    { kind: "same", text: " mare " },
    { kind: "removed", text: "grazes" },
    { kind: "added", text: "sleeps" },
  ]);
  expect(diff("same", "same")).toEqual([{ kind: "same", text: "same" }]);
  expect(diff("", "new")).toEqual([{ kind: "added", text: "new" }]);
});

test("both texts can be put together again", () => {
  let seed = 7;
  const random = (most: number) => {
    seed = (seed * 48271) % 2147483647;
    return seed % most;
  };
  const text = () => Array.from({ length: random(30) }, () => ["a", "b", " ", ".", "🐎", "\n"][random(6)]).join("");
  for (let round = 0; round < 2000; round++) {
    const [before, after] = [text(), text()];
    expect(only("removed", before, after)).toBe(before);
    expect(only("added", before, after)).toBe(after);
  }
});

test("a long text is compared too", () => {
  const [before, after] = ["x ".repeat(9000), `${"x ".repeat(3000)}${"y ".repeat(9000)}`];
  expect(only("removed", before, after)).toBe(before);
  expect(only("added", before, after)).toBe(after);
});

test("empty fields of a column leave the settings of the chat as they are", () => {
  expect(changes({ model: "m", temperature: "", seed: "" }, false)).toEqual({});
  expect(changes({ model: "m", temperature: "0,5", seed: "7" }, false)).toEqual({ temperature: 0.5, seed: 7 });
  expect(changes({ model: "m", temperature: "", seed: "" }, true)).toEqual({ deterministic: true, seed: 0 });
});
