import { expect, test } from "vitest";
import { AnswerBuilder, type Chunk } from "./answer";

function chunk(delta: Chunk["choices"][number]["delta"], finish: string | null = null): Chunk {
  return { choices: [{ delta, finish_reason: finish }] };
}

test("text, reasoning and calls are assembled and timed", () => {
  const builder = new AnswerBuilder(10);
  builder.feed({ ...chunk({}), prompt_progress: { total: 8, cache: 2, processed: 4 } }, 10.5);
  expect(builder.progress).toEqual({ done: 4, total: 8 });
  builder.feed(chunk({ reasoning_content: "Let " }), 11);
  expect(builder.progress).toBeNull();
  expect(builder.written(12).thought).toBe(1);
  builder.feed(chunk({ reasoning_content: "me see." }), 12);
  builder.feed(chunk({ content: "It is " }), 13);
  builder.feed(chunk({ content: "so." }), 14);
  builder.feed(chunk({ tool_calls: [{ index: 0, id: "1", function: { name: "f", arguments: '{"a"' } }] }), 14);
  builder.feed(chunk({ tool_calls: [{ index: 1, id: "2", function: { name: "g", arguments: "{}" } }] }), 14);
  builder.feed(chunk({ tool_calls: [{ index: 0, function: { arguments: ":1}" } }] }), 14);
  builder.feed(chunk({}, "tool_calls"), 15);
  builder.feed(
    {
      choices: [],
      usage: { prompt_tokens: 8, completion_tokens: 20, prompt_tokens_details: { cached_tokens: 2 } },
      timings: { cache_n: 2, prompt_n: 6, predicted_n: 20, predicted_per_second: 40 },
    },
    15,
  );
  expect(builder.written(99)).toEqual({
    content: "It is so.",
    reasoning: "Let me see.",
    thought: 2,
    calls: [
      { id: "1", name: "f", arguments: '{"a":1}' },
      { id: "2", name: "g", arguments: "{}" },
    ],
    finish: "tool_calls",
    statistics: {
      promptTokens: 8,
      cachedTokens: 2,
      answerTokens: 20,
      tokensPerSecond: 40,
      parts: null,
      report: null,
      waited: 5,
    },
    firstToken: 1,
  });
});

test("an interrupted answer keeps its statistics", () => {
  const builder = new AnswerBuilder(0);
  const timings = { cache_n: 1, prompt_n: 3, predicted_n: 5, predicted_per_second: 0 };
  builder.feed({ ...chunk({ content: "Wel" }), timings }, 1);
  expect(builder.written(2)).toMatchObject({
    finish: null,
    statistics: { promptTokens: 4, cachedTokens: 1, answerTokens: 5, tokensPerSecond: null },
  });
});
