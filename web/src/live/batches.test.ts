import { expect, test } from "vitest";
import { type Batch, failures, firstErrors, MOST_ERRORS, mistakes } from "./batches";

const LINE = JSON.stringify({ custom_id: "a", response: { body: { error: { message: "too long" } } }, error: null });

test("the first errors of a file, also if its end is cut", () => {
  expect(firstErrors(`${LINE}\n{"custom_id": "b", "error": {"message": "expired"}}\n{"custom`)).toEqual([
    "a: too long",
    "b: expired",
  ]);
  expect(firstErrors(`${LINE}\n`.repeat(50))).toHaveLength(MOST_ERRORS);
  expect(firstErrors("")).toEqual([]);
});

test("the first failures of a batch that runs", () => {
  const batch = { status: "in_progress", first_failures: [{ custom_id: "a", message: "too long" }] } as Batch;
  expect(failures(batch)).toEqual(["a: too long"]);
  expect(failures({ ...batch, status: "completed" })).toEqual([]);
  expect(failures({ status: "in_progress" } as Batch)).toEqual([]);
});

test("the mistakes of a refused file", () => {
  const batch = {
    errors: {
      data: [
        { line: 3, message: "no custom_id" },
        { line: null, message: "empty" },
      ],
    },
  } as Batch;
  expect(mistakes(batch)).toEqual(["Line 3: no custom_id", "empty"]);
  expect(mistakes({ errors: null } as Batch)).toEqual([]);
});
