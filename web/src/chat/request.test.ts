import { expect, test } from "vitest";
import { requestBody, withAttachments } from "./request";
import { NOTHING_SET } from "./settings";
import type { AnswerMessage, Message, UserMessage } from "./tree";

const COMMON = { conversation: "c", parent: null, created: 0 };
const ASKED: UserMessage = { ...COMMON, id: "u", role: "user", content: "Hello", attachments: [] };
const ANSWERED: AnswerMessage = {
  ...COMMON,
  id: "a",
  role: "assistant",
  content: "",
  model: "m",
  reasoning: "Hm.",
  thought: 1,
  calls: [{ id: "1", name: "f", arguments: "{}" }],
  finish: "tool_calls",
  open: false,
  continued: "",
  problem: null,
  statistics: null,
  firstToken: null,
};
const RESULT: Message = { ...COMMON, id: "t", role: "tool", call: "1", content: "42" };

test("a branch becomes the messages of a request, with the system prompt first", () => {
  const body = requestBody([ASKED, ANSWERED, RESULT], { ...NOTHING_SET, system: " Be brief. ", seed: "7" }, "m");
  expect(body).toMatchObject({ model: "m", seed: 7, stream: true, stream_options: { include_usage: true } });
  expect(body.messages).toEqual([
    { role: "system", content: "Be brief." },
    { role: "user", content: "Hello" },
    {
      role: "assistant",
      content: "",
      reasoning_content: "Hm.",
      tool_calls: [{ id: "1", type: "function", function: { name: "f", arguments: "{}" } }],
    },
    { role: "tool", tool_call_id: "1", content: "42" },
  ]);
});

test("an answer without content is left out", () => {
  const { messages } = requestBody([ASKED, { ...ANSWERED, calls: [], reasoning: "" }, ASKED], NOTHING_SET, null);
  expect(messages).toHaveLength(2);
});

test("no file can close the fence around it", () => {
  expect(withAttachments("What is it?", [{ name: "a.md", text: "```\ncode\n```" }])).toBe(
    "a.md:\n````\n```\ncode\n```\n````\n\nWhat is it?",
  );
  expect(withAttachments("", [{ name: "a", text: "x\n" }])).toBe("a:\n```\nx\n```");
});
