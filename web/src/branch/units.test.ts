import { expect, test } from "vitest";
import { alternativesIn, unitsOf } from "./units";

const pieces = (...texts: (string | number[])[]) => texts.map((piece, id) => ({ id, piece }));

test("the tokens of a text, and where they start", () => {
  expect(unitsOf("The mare", pieces("The", " mare"))).toEqual([
    { text: "The", start: 0 },
    { text: " mare", start: 3 },
  ]);
  expect(unitsOf("The mare", pieces(" The", " mare")).map(({ start }) => start)).toEqual([0, 3]);
});

test("parts of a character are put together", () => {
  const units = unitsOf("a🐎b", pieces("a", [0xf0, 0x9f], [0x90, 0x8e], "b"));
  expect(units.map(({ text }) => text)).toEqual(["a", "🐎", "b"]);
  expect(units.map(({ start }) => start)).toEqual([0, 1, 3]);
});

test("words stand for tokens that do not make up the text", () => {
  const units = unitsOf("The grey  mare\n", pieces("something", " else"));
  expect(units.map(({ text }) => text)).toEqual(["The", " grey", "  mare", "\n"]);
  expect(units.map(({ text, start }) => "The grey  mare\n".startsWith(text, start))).not.toContain(false);
});

test("the alternatives to a token", () => {
  const top_logprobs = [
    { token: " mare", logprob: 0, bytes: [32, 109] },
    { token: "�", logprob: Math.log(0.25), bytes: [0xf0] },
    { token: "", logprob: Math.log(0.1), bytes: [] },
  ];
  expect(alternativesIn({ choices: [{ logprobs: { content: [{ top_logprobs }] } }] })).toEqual([
    { text: " mare", probability: 1, isPartial: false },
    { text: "�", probability: 0.25, isPartial: true },
    { text: "", probability: expect.closeTo(0.1), isPartial: false },
  ]);
  expect(alternativesIn({ choices: [{ logprobs: null }] })).toEqual([]);
});
