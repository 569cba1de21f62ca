import { expect, test } from "vitest";
import type { CacheReport, Parting } from "../api/live";
import { partsOf, placeOf } from "./reportWords";

const PARTING: Parting = { token: 9, character: 1032, message: null, tool: null, text: "b", known: "a" };

function aReport(reused: Partial<CacheReport["reused"]>): CacheReport {
  return {
    summary: "",
    reason: "changed",
    prompt_tokens: 40,
    reused: { cells: 0, host: 0, disk: 0, ...reused },
    computed: 31,
    evicted: 0,
    not_reusable: 0,
    parted: PARTING,
  };
}

test("only tiers that gave tokens are named", () => {
  expect(partsOf(aReport({}))).toBe("");
  expect(partsOf(aReport({ cells: 9, disk: 2000 }))).toBe("9 from KV cache, 2,000 from disk");
});

test("a place is named by its message, its tool, or its character", () => {
  expect(placeOf(PARTING)).toBe("Character 1,032 of the prompt");
  expect(placeOf({ ...PARTING, tool: "read_file" })).toBe("Tool definition read_file");
  const system = { index: 0, role: "system", character: 214 };
  expect(placeOf({ ...PARTING, message: system })).toBe("System message, character 214");
  const user = { index: 3, role: "user", character: null };
  expect(placeOf({ ...PARTING, message: user })).toBe("Message 3 (user), outside its text");
});
