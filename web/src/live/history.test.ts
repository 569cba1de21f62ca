import { expect, test } from "vitest";
import { aModel, aState, NO_TOTALS, slots } from "./example";
import { KEPT, paces, remember, type Sample, sampleOf, seriesOf } from "./history";

/** A model that answers 10 tokens a second, and its samples at these times. */
function steady(times: number[], id = "demo"): Sample[] {
  return times.map((time) =>
    sampleOf(
      aState(
        [
          aModel({
            id,
            totals: { ...NO_TOTALS, answered_tokens: 10 * time, prompt_tokens: 100 * time },
            first_token: { bounds: [0.1, 1], counts: [0, time, 0] },
            slots: slots("answer", "idle"),
            waiting: 2,
          }),
        ],
        time,
      ),
    ),
  );
}

const times = (count: number) => Array.from({ length: count }, (_, second) => second + 1);

test("the history keeps ten minutes", () => {
  const history = steady(times(KEPT + 100)).reduce<Sample[]>(remember, []);
  expect(history[0]?.time).toBe(100);
  expect(history.at(-1)?.time).toBe(KEPT + 100);
});

test("samples in the future are dropped if the clock was set back", () => {
  const history = [...steady([1, 2, 9]), ...steady([3])].reduce<Sample[]>(remember, []);
  expect(history.map(({ time }) => time)).toEqual([1, 2, 3]);
});

test("speeds are differences over a few seconds", () => {
  const series = seriesOf(steady(times(20)), 10, null);
  expect(series.times).toEqual([10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]);
  expect(series.answered.every((value) => value === 10)).toBe(true);
  expect(series.read.every((value) => value === 100)).toBe(true);
  expect(series.running.every((value) => value === 1)).toBe(true);
  expect(series.waiting.every((value) => value === 2)).toBe(true);
  expect(series.firstTokenMedian.at(-1)).toBeCloseTo(0.55);
});

test("a single sample has no rate", () => {
  expect(seriesOf(steady([7]), 60, null).answered).toEqual([null]);
  expect(paces(steady([7])).size).toBe(0);
});

test("gaps are not connected by a line", () => {
  const series = seriesOf(steady([1, 2, 3, 60, 61]), 600, null);
  expect(series.times).toEqual([1, 2, 3, 58, 60, 61]);
  expect(series.running).toEqual([1, 1, 1, null, 1, 1]);
  expect(series.answered).toEqual([null, 10, 10, null, null, 10]);
});

test("a restarted server counts from zero", () => {
  const [before] = steady([50]);
  const [after] = steady([2]);
  const history = [before, { ...after, time: 52 }] as Sample[];
  expect(seriesOf(history, 600, null).answered.at(-1)).toBe(10);
});

test("rates are computed for one model or for all", () => {
  const [one, other] = [steady(times(3), "one"), steady(times(3), "other")];
  const both = one.map((sample, place) => ({
    time: sample.time,
    models: new Map([...sample.models, ...(other[place]?.models ?? [])]),
  }));
  expect(seriesOf(both, 60, null).answered.at(-1)).toBe(20);
  expect(seriesOf(both, 60, "one").answered.at(-1)).toBe(10);
  expect(paces(both).get("other")?.answered).toBe(10);
});

test("a new model has no rate", () => {
  const [first] = steady([1], "one");
  const [second] = steady([2], "other");
  expect(paces([first, second] as Sample[]).size).toBe(0);
});
