import { expect, test } from "vitest";
import { similarities } from "./similarity";

test("the same direction is 1, orthogonal is 0, opposite is -1", () => {
  const values = similarities([
    [1, 0],
    [5, 0],
    [0, 2],
    [-3, 0],
  ]);
  expect(values[0]).toEqual([1, 1, 0, -1]);
  values.forEach((row, place) => {
    expect(row[place]).toBeCloseTo(1);
    expect(row).toEqual(values.map((other) => other[place]));
  });
});

test("the similarity to a zero vector is 0", () => {
  expect(
    similarities([
      [0, 0],
      [1, 1],
    ]),
  ).toEqual([
    [0, 0],
    [0, expect.closeTo(1)],
  ]);
});
