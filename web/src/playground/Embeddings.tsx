import { signal } from "@preact/signals";
import { postJson } from "../api/client";
import { TEXT } from "../text";
import { CopyCall } from "./CopyCall";
import { isFit, ModelPicker } from "./ModelPicker";
import { question } from "./question";
import { Result } from "./Result";
import { similarities } from "./similarity";

interface Made {
  texts: readonly string[];
  vectors: readonly (readonly number[])[];
  tokens: number;
}

const MOST = 12;

const model = signal("");
const texts = signal<readonly string[]>([
  "How do I saddle a horse?",
  "Putting tack on a mare, step by step",
  "The train leaves at noon",
]);
const { answer: made, problem, asking, ask } = question<Made>();

/** A few texts, and their similarities by a model. */
export function Embeddings() {
  const given = texts.value.filter((text) => text.trim() !== "");
  const change = (place: number, text: string) => {
    texts.value = texts.value.map((old, at) => (at === place ? text : old));
  };
  return (
    <div class="bench">
      <form
        class="panel controls"
        onSubmit={(event) => {
          event.preventDefault();
          void ask(() => compare(given));
        }}
      >
        <ModelPicker chosen={model} kind="embedding" />
        <fieldset class="texts">
          <legend>{TEXT.playground.texts}</legend>
          {texts.value.map((text, place) => (
            <div class="text-row" key={place}>
              <span class="number" aria-hidden="true">
                {place + 1}
              </span>
              <input
                aria-label={TEXT.playground.textNumber(place + 1)}
                value={text}
                onInput={(event) => change(place, event.currentTarget.value)}
              />
              <button
                type="button"
                class="plain"
                aria-label={TEXT.playground.removeText(place + 1)}
                disabled={texts.value.length <= 2}
                onClick={() => {
                  texts.value = texts.value.filter((_, at) => at !== place);
                }}
              >
                ✕
              </button>
            </div>
          ))}
          <button
            type="button"
            disabled={texts.value.length >= MOST}
            onClick={() => {
              texts.value = [...texts.value, ""];
            }}
          >
            {TEXT.playground.addText}
          </button>
        </fieldset>
        <div class="run">
          <button
            type="submit"
            class="primary"
            disabled={asking.value || given.length === 0 || !isFit(model.value, "embedding")}
          >
            {TEXT.playground.compare}
          </button>
          <CopyCall path="/v1/embeddings" body={bodyOf(given)} />
        </div>
      </form>
      <Result
        label={TEXT.playground.similarity}
        busy={asking.value}
        problem={problem.value}
        hint={TEXT.playground.similarityHint}
      >
        {made.value && <Matrix made={made.value} />}
      </Result>
    </div>
  );
}

function Matrix({ made: { texts, vectors, tokens } }: { made: Made }) {
  const values = similarities(vectors);
  return (
    <>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it must scroll by the keyboard */}
      <section class="matrix-scroll" aria-label={TEXT.playground.matrix} tabIndex={0}>
        <table class="matrix">
          <caption class="hidden-visually">{TEXT.playground.matrixCaption}</caption>
          <thead>
            <tr>
              <td />
              {texts.map((text, place) => (
                <th key={place} scope="col" title={text}>
                  {place + 1}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {values.map((row, place) => (
              <tr key={place}>
                <th scope="row">
                  <span class="number">{place + 1}</span> {texts[place]}
                </th>
                {row.map((value, column) => (
                  <td key={column} style={{ background: tint(value) }}>
                    {value.toFixed(2)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </section>
      <p class="quiet small facts" role="status">
        {TEXT.playground.vectors(vectors.length, vectors[0]?.length ?? 0, tokens)}
      </p>
    </>
  );
}

/** Never so strong that the number is hard to read. */
function tint(value: number): string {
  const colour = value < 0 ? "--problem" : "--accent";
  return `color-mix(in srgb, var(${colour}) ${Math.round(45 * Math.min(1, Math.abs(value)))}%, var(--raised))`;
}

function bodyOf(input: readonly string[]) {
  return { model: model.value, input, encoding_format: "float" };
}

async function compare(input: readonly string[]): Promise<Made> {
  const { data, usage } = await postJson<{ data: { embedding: number[] }[]; usage: { prompt_tokens: number } }>(
    "/v1/embeddings",
    bodyOf(input),
  );
  return { texts: input, vectors: data.map(({ embedding }) => embedding), tokens: usage.prompt_tokens };
}
