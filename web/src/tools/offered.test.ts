import { expect, test } from "vitest";
import { NOTHING_SET } from "../chat/settings";
import type { AnswerMessage, Message, ToolCall } from "../chat/tree";
import { areAllowed, argumentsIn, offered, roundsIn, type ServerTool, toolOf, toolsIn } from "./offered";

const SEARCH: ServerTool = { server: "notes", tool: "search", function: { name: "notes__search" } };
const DELETE: ServerTool = { server: "notes", tool: "delete", function: { name: "notes__delete" } };

function call(name: string, more: Partial<ToolCall> = {}): ToolCall {
  return { id: name, name, arguments: "{}", ...more };
}

function answer(...calls: ToolCall[]): AnswerMessage {
  const common = { id: "a", conversation: "c", parent: null, created: 0, content: "" };
  const rest = { reasoning: "", thought: null, finish: "tool_calls", continued: "", open: false, problem: null };
  return { ...common, ...rest, role: "assistant", model: "m", calls, statistics: null, firstToken: null };
}

test("the offered tools are those of the settings, and nothing else is one", () => {
  expect(offered(NOTHING_SET)).toEqual([]);
  expect(offered({ ...NOTHING_SET, server_tools: JSON.stringify([SEARCH]) })).toEqual([SEARCH]);
  for (const wrong of ["{", "{}", "[null]", '[{"server": "a"}]', '[{"server": "a", "tool": "b", "function": {}}]']) {
    expect(offered({ ...NOTHING_SET, server_tools: wrong })).toEqual([]);
  }
  expect(toolsIn([SEARCH, 5])).toBeNull();
});

test("a call is for the tool with its name", () => {
  expect(toolOf([SEARCH, DELETE], call("notes__delete"))).toBe(DELETE);
  expect(toolOf([SEARCH], call("clock"))).toBeNull();
});

test("arguments are a JSON object", () => {
  expect(argumentsIn('{"a": 1}')).toEqual({ a: 1 });
  for (const wrong of ["", "[]", "null", "5", '{"a"']) expect(argumentsIn(wrong)).toBeNull();
});

test("calls run by themselves only if all of them are allowed", () => {
  const tools = [SEARCH, DELETE];
  const both = answer(call("notes__search"), call("notes__delete"));
  expect(areAllowed(both, tools, [])).toBe(false);
  expect(areAllowed(both, tools, ["notes/search"])).toBe(false);
  expect(areAllowed(both, tools, ["notes/search", "notes/delete"])).toBe(true);
  expect(areAllowed(both, [SEARCH], ["notes/search", "notes/delete"])).toBe(false);
  expect(areAllowed(answer(call("clock", { result: "noon" }), call("notes__search")), tools, ["notes/search"])).toBe(
    true,
  );
});

test("rounds are counted since the user's last message", () => {
  const said: Message = { ...answer(), role: "user", attachments: [] };
  const result: Message = { ...answer(), role: "tool", call: "1" };
  const round = [answer(call("f")), result];
  expect(roundsIn([said, ...round, said, ...round, ...round, answer()])).toBe(2);
  expect(roundsIn([said])).toBe(0);
});
