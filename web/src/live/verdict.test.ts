import { expect, test } from "vitest";
import type { LiveModel } from "../api/live";
import { aModel, aState, slots } from "./example";
import type { Pace } from "./history";
import { verdict } from "./verdict";

const pace = (pace: Partial<Pace>): Pace => ({ read: 0, answered: 0, preemptions: 0, ...pace });

function said(models: LiveModel[], paces: Record<string, Pace> = {}): string {
  return verdict(aState(models), new Map(Object.entries(paces))).text;
}

test("the verdict names the models that answer, their speed, and why requests wait", () => {
  const model = aModel({ slots: slots("answer", "answer", "prompt", "answer"), waiting: 2 });
  expect(said([model], { demo: pace({ answered: 41.2, read: 310 }) })).toBe(
    "demo: 3 generating at 41 tokens/s, 1 processing a prompt at 310 tokens/s, 2 waiting because all 4 slots are busy",
  );
});

test("an unknown speed is left out", () => {
  expect(said([aModel({ slots: slots("answer", "idle") })])).toBe("demo: 1 generating");
});

test("one slot", () => {
  expect(said([aModel({ slots: slots("answer"), waiting: 1 })])).toBe(
    "demo: 1 generating, 1 waiting because its only slot is busy",
  );
});

test("requests that wait while a slot is free wait for memory after a preemption", () => {
  const model = aModel({ slots: slots("answer", "idle"), waiting: 1 });
  expect(said([model], { demo: pace({ preemptions: 1 }) })).toBe(
    "demo: 1 generating, 1 waiting because the context is full",
  );
  expect(said([model], { demo: pace({}) })).toBe("demo: 1 generating, 1 waiting");
});

test("loading", () => {
  expect(said([aModel({ state: "loading", progress: 0.4, waiting: 3 })])).toBe("demo loading, 40%, 3 waiting for it");
  expect(said([aModel({ state: "loading" })])).toBe("demo loading");
  expect(said([aModel({ state: "unloaded", waiting: 1 })])).toBe("demo: 1 waiting for it to load");
});

test("an idle server", () => {
  expect(said([])).toBe("No models available to you");
  expect(said([aModel({ state: "unloaded" })])).toBe("No model loaded. The first request loads one");
  expect(said([aModel({ leaves_in: 240 })])).toBe("Idle. demo loaded; unloads in 4 min");
  expect(said([aModel(), aModel({ id: "other" })])).toBe("Idle. demo and other loaded");
});

test("a failure is always reported with its reason", () => {
  const crashed = aModel({ id: "crashed", state: "failed", reason: "it ended with SIGSEGV." });
  expect(said([crashed, aModel({ slots: slots("answer") })])).toBe(
    "demo: 1 generating; crashed failed: it ended with SIGSEGV",
  );
  expect(said([crashed, crashed])).toContain("crashed failed and 1 more: it ended with SIGSEGV");
});

test("a broken file is not the state of the server", () => {
  const broken = aModel({ id: "broken", state: "failed", broken: true, reason: "the file is cut short." });
  expect(verdict(aState([broken, aModel()]), new Map())).toMatchObject({ tone: "calm" });
});

test("the busiest models are named, the others counted", () => {
  const models = [1, 2, 3, 4, 5].map((busy) =>
    aModel({ id: `m${busy}`, slots: slots(...Array.from({ length: busy }, () => "answer" as const)) }),
  );
  expect(said(models)).toBe("m5: 5 generating; m4: 4 generating; m3: 3 generating; 2 more models active");
});

test("the tone is the worst of all models", () => {
  const tone = (...models: LiveModel[]) => verdict(aState(models), new Map()).tone;
  expect(tone(aModel({ slots: slots("answer") }))).toBe("calm");
  expect(tone(aModel({ slots: slots("answer"), waiting: 1 }))).toBe("busy");
  expect(tone(aModel({ waiting: 1 }), aModel({ state: "failed" }))).toBe("problem");
});
