import { expect, test } from "vitest";
import { kindOf, reportOf } from "./diagramReport";

test("reports of the frame are checked", () => {
  expect(reportOf({ state: "ready", more: 1 })).toEqual({ state: "ready" });
  expect(reportOf({ state: "drawn", height: 120 })).toEqual({ state: "drawn", height: 120 });
  expect(reportOf({ state: "drawn", height: 1e9 })).toEqual({ state: "drawn", height: 5_000 });
  for (const height of [0, -1, Number.NaN, "120", null]) expect(reportOf({ state: "drawn", height })).toBeNull();
  for (const data of [null, undefined, "ready", 3, {}, { state: "done" }, { state: "failed", reason: 3 }]) {
    expect(reportOf(data)).toBeNull();
  }
});

test("a reason is one short line", () => {
  const reason = (text: string) => reportOf({ state: "failed", reason: text });
  expect(reason("Parse error on line 2:\n...A --\n-----^\nExpecting 'B'")).toEqual({
    state: "failed",
    reason: "Parse error on line 2",
  });
  expect(reason("x".repeat(1_000))).toEqual({ state: "failed", reason: `${"x".repeat(200)}…` });
});

test.each([
  ["flowchart TD\n  A --> B", "flowchart"],
  ["\n%% a comment\n  sequenceDiagram", "sequenceDiagram"],
  ["---\ntitle: x\n---\nstateDiagram-v2", "stateDiagram-v2"],
  ["%%{init: {\n'theme': 'dark'}}%%\ngraph LR", "graph"],
  ["pie title x", "pie"],
  ["", ""],
  ["<b>", ""],
])("the kind of %j is %j", (source, kind) => {
  expect(kindOf(source)).toBe(kind);
});
