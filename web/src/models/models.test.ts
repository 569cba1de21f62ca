import { expect, test } from "vitest";
import { type Card, fits, fromCards, inWords, parametersInWords, preferred, withEvent, withFailure } from "./models";

function card(id: string, value: Card["status"]["value"], more: Partial<Card> = {}): Card {
  const meta = { quantization: "Q8_0", size: 1, n_params: 1, n_ctx: null, n_ctx_train: 8192 };
  return { id, kind: "generation", status: { value }, meta, architecture: { input_modalities: ["text"] }, ...more };
}

const CARDS = [
  card("a", "unloaded"),
  card("b", "loaded"),
  card("broken", "unloaded", { status: { value: "unloaded", problem: "no GGUF" } }),
  card("vectors", "loaded", { kind: "embedding" }),
];
const MODELS = fromCards(CARDS);
const state = (models: typeof MODELS, id: string) => models.find((model) => model.id === id)?.state;

test("all models are listed, with the reason if one cannot be loaded", () => {
  const listed = MODELS.map(({ id, state }) => `${id} ${state}`);
  expect(listed).toEqual(["a unloaded", "b loaded", "vectors loaded", "broken failed"]);
  expect(MODELS[3]?.reason).toBe("no GGUF");
});

test("what a model reads besides text is known", () => {
  const eye = card("eye", "unloaded", { architecture: { input_modalities: ["text", "image", "smell"] } });
  expect(fromCards([eye, card("a", "loaded")]).map(({ media }) => media)).toEqual([["image"], []]);
});

test("a model is fit for its kind, and for everything while the kind is unknown", () => {
  const named = (kind: "generation" | "embedding") =>
    fromCards([...CARDS, card("unknown", "unloaded", { kind: null })])
      .filter((model) => fits(model, kind))
      .map(({ id }) => id);
  expect(named("generation")).toEqual(["a", "b", "unknown", "broken"]);
  expect(named("embedding")).toEqual(["vectors", "unknown"]);
});

test("events change the state of a model", () => {
  const loading = withEvent(MODELS, { model: "a", data: { status: "loading", progress: { value: 0.42 } } });
  expect(loading[0] && inWords(loading[0])).toBe("loading, 42%");
  expect(state(withEvent(loading, { model: "a", data: { status: "loaded" } }), "a")).toBe("loaded");
});

test("a failure is shown until the server lists the model without it", () => {
  const failed = withFailure(MODELS, "a", "too large");
  expect(state(failed, "a")).toBe("failed");
  expect(fromCards([card("a", "unloaded")], failed)[0]).toMatchObject({ state: "unloaded", reason: null });
  const again = withEvent(failed, { model: "a", data: { status: "loading" } });
  expect(state(withEvent(again, { model: "a", data: { status: "unloaded" } }), "a")).toBe("unloaded");
});

test("the selected model is used, or else one that exists", () => {
  expect(preferred(MODELS, "a")?.id).toBe("a");
  expect(preferred(MODELS, "gone")?.id).toBe("b");
  expect(preferred([], "gone")).toBeNull();
  expect(preferred(MODELS, "broken")?.id).toBe("b");
  expect(preferred(fromCards(CARDS.slice(2, 3)), "broken")).toBeNull();
});

test("no model has 0M parameters", () => {
  expect([7.62e9, 134_515_008, 1_500_000, 260_032, 9_200].map(parametersInWords)).toEqual([
    "7.6B",
    "135M",
    "1.5M",
    "0.3M",
    "9K",
  ]);
});
