import { expect, test } from "vitest";
import { seconds, statisticsOf } from "./statistics";
import type { AnswerMessage } from "./tree";

const ANSWER = {
  model: "demo",
  statistics: { promptTokens: 1200, cachedTokens: 1000, answerTokens: 1, tokensPerSecond: 41.26 },
  firstToken: 0.25,
  finish: "length",
  problem: null,
} as AnswerMessage;

test("numbers are formatted", () => {
  expect(statisticsOf(ANSWER, false)).toEqual([
    "demo",
    "41.3 tokens/s",
    "1 token",
    "prompt 1,200 (1,000 cached)",
    "first token 250 ms",
    "token limit reached",
  ]);
  expect(statisticsOf({ ...ANSWER, finish: null }, false).at(-1)).toBe("stopped");
  expect(statisticsOf({ ...ANSWER, finish: null }, true).at(-1)).toBe("first token 250 ms");
});

test("durations have a suitable precision", () => {
  expect([0.0123, 1.25, 123, 75].map(seconds)).toEqual(["12 ms", "1.3 s", "2 min 3 s", "1 min 15 s"]);
});
