import { expect, test } from "vitest";
import { shown } from "./pieces";

test("white space is visible", () => {
  expect(shown(" horse")).toEqual({ kind: "text", text: "·horse", breaks: 0 });
  expect(shown("a b")).toEqual({ kind: "text", text: "a b", breaks: 0 });
  expect(shown("\n\n  ")).toEqual({ kind: "text", text: "⏎⏎··", breaks: 2 });
  expect(shown("\t\u0007")).toEqual({ kind: "text", text: "⇥␇", breaks: 0 });
});

test("control tokens differ from words", () => {
  for (const name of ["<|im_start|>", "</s>", "<s>", "[CLS]", "<end_of_turn>"])
    expect(shown(name).kind).toBe("control");
  for (const word of ["<div>", "[1]", "<|", "s", "[x]"]) expect(shown(word).kind).toBe("text");
});

test("bytes that are not text are hexadecimal", () => {
  expect(shown([0xf0, 0x9f, 0x0a])).toEqual({ kind: "bytes", text: "f0 9f 0a", breaks: 0 });
  expect(shown("bytes:\\xe2\\x82")).toEqual({ kind: "bytes", text: "e2 82", breaks: 0 });
});
