import { beforeEach, expect, test, vi } from "vitest";
import { NOTHING_SET } from "../chat/settings";

const stored = new Map<string, string>();
vi.stubGlobal("localStorage", {
  getItem: (name: string) => stored.get(name) ?? null,
  setItem: (name: string, value: string) => stored.set(name, value),
});
vi.stubGlobal("addEventListener", () => undefined);
const { keep, library, namesOf, read } = await import("./library");

beforeEach(() => {
  library.value = read(null);
});

test("presets, prompts and defaults are kept by name", () => {
  keep("presets", "b", { ...NOTHING_SET, temperature: "0" });
  keep("presets", "A", NOTHING_SET);
  keep("prompts", "pirate", "You are a pirate.");
  keep("defaults", "m", { ...NOTHING_SET, seed: "7" });
  expect(namesOf("presets")).toEqual(["A", "b"]);
  expect(read(stored.get("paddock.library") ?? null)).toEqual(library.value);
  keep("presets", "b", null);
  expect(namesOf("presets")).toEqual(["A"]);
});

test("fields that are missing are empty, and what is not understood is left out", () => {
  const text = JSON.stringify({
    presets: { a: { seed: "7", other: 1 }, b: 3 },
    prompts: { c: 5, d: "text" },
    defaults: [],
  });
  expect(read(text)).toEqual({ presets: { a: { ...NOTHING_SET, seed: "7" } }, prompts: { d: "text" }, defaults: {} });
  expect(read("{")).toEqual({ presets: {}, prompts: {}, defaults: {} });
});
