import { expect, test } from "vitest";
import { bodyOf, type Chunk, extended, NOTHING } from "./completion";

const CHUNKS: Chunk[] = [
  {
    choices: [
      {
        text: "Hel",
        finish_reason: null,
        logprobs: { tokens: ["Hel"], token_logprobs: [-0.5], top_logprobs: [{ Bye: -2, Hel: -0.5 }] },
      },
    ],
  },
  { choices: [{ text: "lo", finish_reason: "length", logprobs: null }] },
  {
    choices: [],
    timings: { cache_n: 3, prompt_n: 1, prompt_per_second: 10, predicted_n: 2, predicted_per_second: 20 },
  },
];

test("events are assembled into an answer", () => {
  const answer = CHUNKS.reduce(extended, NOTHING);
  expect(answer).toMatchObject({ text: "Hello", finish: "length", timings: { cache_n: 3, predicted_n: 2 } });
  expect(answer.tokens).toEqual([
    {
      text: "Hel",
      logprob: -0.5,
      alternatives: [
        ["Hel", -0.5],
        ["Bye", -2],
      ],
    },
  ]);
});

test("only filled fields are sent", () => {
  const form = {
    model: "m",
    prompt: "p",
    numbers: { seed: "7", top_p: " ", temperature: "0" },
    stop: "",
    alternatives: false,
  };
  expect(bodyOf(form)).toEqual({
    model: "m",
    prompt: "p",
    seed: 7,
    temperature: 0,
    stream: true,
    stream_options: { include_usage: true },
  });
  expect(bodyOf({ ...form, stop: "one\n\ntwo ", alternatives: true })).toMatchObject({
    stop: ["one", "two "],
    logprobs: 5,
  });
});
