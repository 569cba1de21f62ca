import { expect, test } from "vitest";
import { areSame, filled, inForce, NOTHING_SET, parsed } from "./settings";

test("unset fields are not sent", () => {
  expect(parsed(NOTHING_SET)).toEqual({ fields: {}, problems: {} });
  expect(inForce(NOTHING_SET)).toEqual([]);
});

test("set fields are sent with the server's names", () => {
  const { fields, problems } = parsed({
    ...NOTHING_SET,
    temperature: " 0.2 ",
    top_k: "0",
    stop: "END\n\n  two ",
    schema: '{"type": "object"}',
    tools: '[{"type": "function", "function": {"name": "f"}}]',
  });
  expect(problems).toEqual({});
  expect(fields).toEqual({
    temperature: 0.2,
    top_k: 0,
    stop: ["END", "  two "],
    response_format: { type: "json_schema", json_schema: { name: "answer", schema: { type: "object" } } },
    tools: [{ type: "function", function: { name: "f" } }],
  });
});

test("tools of the server are sent beside the others, without their place", () => {
  const server_tools = '[{"server": "notes", "tool": "g", "function": {"name": "notes__g"}}]';
  const set = { ...NOTHING_SET, tools: '[{"type": "function", "function": {"name": "f"}}]', server_tools };
  expect(parsed(set).fields.tools).toEqual([
    { type: "function", function: { name: "f" } },
    { type: "function", function: { name: "notes__g" } },
  ]);
  expect(inForce({ ...NOTHING_SET, server_tools })).toEqual(["Tools"]);
  expect(parsed({ ...NOTHING_SET, server_tools: '[{"server": 5}]' }).problems.server_tools).toMatch(/array/);
});

test("thinking, DRY, XTC and custom fields are sent", () => {
  const set = { ...NOTHING_SET, dry_multiplier: "0.8", xtc_probability: "0.5", thinking: "on", effort: "high" };
  expect(parsed({ ...set, custom: '{"typical_p": 0.9, "dry_multiplier": 1}' })).toEqual({
    fields: {
      dry_multiplier: 1,
      xtc_probability: 0.5,
      enable_thinking: true,
      reasoning_effort: "high",
      typical_p: 0.9,
    },
    problems: {},
  });
  expect(parsed({ ...NOTHING_SET, thinking: "off", effort: "high" }).fields).toEqual({ enable_thinking: false });
  expect(inForce(set)).toEqual(["Thinking on", "Effort: high", "2 parameters"]);
});

test("custom fields are an object and do not replace the page's own", () => {
  expect(parsed({ ...NOTHING_SET, custom: "[]" }).problems.custom).toMatch(/JSON object/);
  expect(parsed({ ...NOTHING_SET, custom: '{"stream": false}' })).toEqual({
    fields: {},
    problems: { custom: "“stream” is set by the page" },
  });
});

test("settings of an older version are filled", () => {
  expect(filled({ seed: "7", unknown: "x", top_p: 1 })).toEqual({ ...NOTHING_SET, seed: "7" });
  expect(filled(null)).toBeNull();
  expect(areSame(NOTHING_SET, { ...NOTHING_SET, seed: " " })).toBe(true);
  expect(areSame(NOTHING_SET, { ...NOTHING_SET, custom: "{}" })).toBe(false);
});

test("errors are reported by field, and invalid fields are not sent", () => {
  const { fields, problems } = parsed({
    ...NOTHING_SET,
    temperature: "warm",
    top_p: "1.1",
    top_k: "1.5",
    repeat_penalty: "0",
    schema: "{",
    tools: '[{"function": {}}]',
  });
  expect(fields).toEqual({});
  expect(problems).toMatchObject({
    temperature: "Not a number",
    top_p: "Must be at most 1",
    top_k: "Must be a whole number",
    repeat_penalty: "Must be at least 0.01",
  });
  expect(problems.schema).toMatch(/^Invalid JSON: /);
  expect(problems.tools).toMatch(/^Tool 1 is not/);
  expect(parsed({ ...NOTHING_SET, schema: "[]" }).problems.schema).toMatch(/object/);
  expect(parsed({ ...NOTHING_SET, tools: "{}" }).problems.tools).toMatch(/array/);
});

test("the summary names active settings", () => {
  expect(inForce({ ...NOTHING_SET, system: "Be brief.", seed: "1", stop: "x" })).toEqual([
    "System prompt",
    "2 parameters",
  ]);
});
