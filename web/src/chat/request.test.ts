import { expect, test } from "vitest";
import { chatRequest, withFiles } from "./request";
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

test("a branch becomes the messages of a request, with the system prompt first", async () => {
  const body = await chatRequest([ASKED, ANSWERED, RESULT], { ...NOTHING_SET, system: " Be brief. ", seed: "7" }, "m");
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

test("an answer without content is left out", async () => {
  const { messages } = await chatRequest([ASKED, { ...ANSWERED, calls: [], reasoning: "" }, ASKED], NOTHING_SET, null);
  expect(messages).toHaveLength(2);
});

test("images and audio are sent before the text", async () => {
  const attachments = [
    { name: "a.txt", text: "x" },
    { name: "b.png", kind: "image" as const, data: new Blob(["img"], { type: "image/png" }) },
    { name: "c.mp3", kind: "audio" as const, data: new Blob(["snd"], { type: "audio/mpeg" }) },
  ];
  const media = [
    { type: "image_url", image_url: { url: "data:image/png;base64,aW1n" } },
    { type: "input_audio", input_audio: { data: "c25k", format: "mp3" } },
  ];
  const sent = async (content: string, files = attachments) =>
    (await chatRequest([{ ...ASKED, content, attachments: files }], NOTHING_SET, null)).messages;
  expect(await sent("What?")).toEqual([
    { role: "user", content: [...media, { type: "text", text: "a.txt:\n```\nx\n```\n\nWhat?" }] },
  ]);
  expect(await sent("", attachments.slice(1))).toEqual([{ role: "user", content: media }]);
});

test("no file can close the fence around it", () => {
  expect(withFiles("What is it?", [{ name: "a.md", text: "```\ncode\n```" }])).toBe(
    "a.md:\n````\n```\ncode\n```\n````\n\nWhat is it?",
  );
  expect(withFiles("", [{ name: "a", text: "x\n" }])).toBe("a:\n```\nx\n```");
});
