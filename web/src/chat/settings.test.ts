import { expect, test } from "vitest";
import { inForce, NOTHING_SET, parsed } from "./settings";

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
