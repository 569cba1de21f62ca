import { expect, test } from "vitest";
import { bytes, counted, duration, guesses, listed, rate, seconds } from "./words";

test("sizes", () => {
  expect([0, 999, 1000, 1536, 98 * 2 ** 20, 1.5 * 2 ** 30, 2 ** 40].map(bytes)).toEqual([
    ...["0 B", "999 B", "1.0 KiB", "1.5 KiB", "98 MiB", "1.5 GiB", "1.0 TiB"],
  ]);
});

test("times", () => {
  expect([0, 0.0004, 0.0251, 0.25, 0.9996, 1.24, 12.3, 150, 1200].map(seconds)).toEqual([
    ...["0", "0.4 ms", "25 ms", "250 ms", "1.0 s", "1.2 s", "12 s", "150 s", "20 min"],
  ]);
  expect([5, 240, 7200].map(duration)).toEqual(["5 s", "4 min", "2 h"]);
});

test("numbers and lists", () => {
  expect([0, 0.42, 9.96, 1234.5].map(rate)).toEqual(["0", "0.4", "10", "1,235"]);
  expect([counted(1, "hit"), counted(2000, "hit")]).toEqual(["1 hit", "2,000 hits"]);
  expect([listed([]), listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])]).toEqual([
    ...["", "a", "a and b", "a, b and c"],
  ]);
});

test("guessed tokens", () => {
  expect(guesses({ drafted_tokens: 1234, accepted_tokens: 1100 })).toBe("guessed 1,234, accepted 1,100 (89%)");
  expect(guesses({ drafted_tokens: 0, accepted_tokens: 0 })).toBeNull();
});
