import { expect, test } from "vitest";
import { between, increase, quantile, sum } from "./quantiles";

const BOUNDS = [1, 2, 4];

test("values are interpolated between two bounds", () => {
  expect(quantile({ bounds: BOUNDS, counts: [10, 0, 0, 0] }, 0.5)).toBeCloseTo(0.5);
  expect(quantile({ bounds: BOUNDS, counts: [0, 4, 0, 0] }, 0.25)).toBeCloseTo(1.25);
  expect(quantile({ bounds: BOUNDS, counts: [5, 0, 5, 0] }, 0.95)).toBeCloseTo(3.8);
});

test("values above the last bound count as that bound", () => {
  expect(quantile({ bounds: BOUNDS, counts: [0, 0, 0, 3] }, 0.5)).toBe(4);
  expect(quantile({ bounds: BOUNDS, counts: [1, 0, 0, 9] }, 0.95)).toBe(4);
});

test("there is no quantile without observations", () => {
  expect(quantile({ bounds: BOUNDS, counts: [0, 0, 0, 0] }, 0.5)).toBeNull();
  expect(quantile(sum([]), 0.5)).toBeNull();
});

test("quantiles grow with the share", () => {
  for (let first = 0; first < 4; first++) {
    for (let last = 0; last < 4; last++) {
      const times = [0, 0.1, 0.25, 0.5, 0.9, 0.99, 1].map((share) =>
        quantile({ bounds: BOUNDS, counts: [first, 2, 0, last] }, share),
      );
      expect(times).toEqual([...times].sort((left, right) => (left ?? 0) - (right ?? 0)));
    }
  }
});

test("the difference of two samples is what was added", () => {
  const before = { bounds: BOUNDS, counts: [1, 2, 3, 4] };
  expect(between(before, { bounds: BOUNDS, counts: [2, 2, 5, 4] }).counts).toEqual([1, 0, 2, 0]);
});

test("after a restart everything counts as new", () => {
  const now = { bounds: BOUNDS, counts: [0, 3, 0, 0] };
  expect(between({ bounds: BOUNDS, counts: [1, 2, 0, 0] }, now)).toEqual(now);
  expect(increase(100, 7)).toBe(7);
  expect(increase(5, 7)).toBe(2);
});

test("histograms of several models are added", () => {
  const all = sum([
    { bounds: BOUNDS, counts: [1, 0, 0, 2] },
    { bounds: BOUNDS, counts: [1, 1, 0, 0] },
  ]);
  expect(all).toEqual({ bounds: BOUNDS, counts: [2, 1, 0, 2] });
});
