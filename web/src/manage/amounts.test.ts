import { expect, test } from "vitest";
import { inBytes, numberIn, taken } from "./amounts";

test("sizes", () => {
  expect(inBytes(4_340_000_000)).toBe("4.3 GB");
  expect(inBytes(104_600_000)).toBe("105 MB");
});

test("what a load takes", () => {
  const host = { weights: 1, cache: 2, compute: 3 };
  const gpu = { weights: 10, cache: 20, compute: 30 };
  expect(taken({ host, gpu, process: 4, limit: {}, fits: true, problem: null })).toEqual({ host: 10, gpu: 60 });
});

test("numbers in fields", () => {
  expect(numberIn(" ")).toBeUndefined();
  expect(numberIn("-1")).toBe(-1);
  expect(numberIn(" 8192 ")).toBe(8192);
  expect(numberIn("8k")).toBeNull();
});
