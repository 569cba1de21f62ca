import { expect, test } from "vitest";
import { Announcer } from "./announcer";

const TEXT =
  "# A title\nFirst, **one** thing. Is it 3.5 or `4`? Well:\n```js\nlet x = 1. ;\n```\n- an item\n- another item";
const SAID = ["A title", "First, one thing.", "Is it 3.5 or 4?", "Well:", "Code.", "an item", "another item"];

test("sentences are announced once, complete and without markup, however the text arrives", () => {
  for (let step = 1; step <= TEXT.length; step++) {
    const announcer = new Announcer();
    const said: string[] = [];
    for (let end = 0; end < TEXT.length; end += step) said.push(...announcer.sentences(TEXT.slice(0, end), false));
    said.push(...announcer.sentences(TEXT, true));
    expect(said).toEqual(SAID);
  }
});

test("an incomplete word is not announced", () => {
  expect(new Announcer().sentences("One. Two is not ye", false)).toEqual(["One."]);
});
