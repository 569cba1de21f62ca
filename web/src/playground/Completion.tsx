import { computed, signal } from "@preact/signals";
import { ApiError, errorOf, postEvents } from "../api/client";
import { TEXT } from "../text";
import { CopyCall } from "./CopyCall";
import { type Answer, bodyOf, type Chunk, extended, type Form, NOTHING } from "./completion";
import { Check, Literal, sentBy } from "./fields";
import { JudgedText } from "./JudgedText";
import { isFit, ModelPicker } from "./ModelPicker";
import { Result } from "./Result";

// Kept while the page is open, also while other views are shown.
const model = signal("");
const prompt = signal("The three things to remember about horses are");
const numbers = signal<Record<string, string>>({ max_tokens: "64" });
const stop = signal("");
const alternatives = signal(true);
const answer = signal<Answer | null>(null);
const problem = signal<string | null>(null);
const running = signal<AbortController | null>(null);

const form = computed<Form>(() => ({
  model: model.value,
  prompt: prompt.value,
  numbers: numbers.value,
  stop: stop.value,
  alternatives: alternatives.value,
}));

const FIELDS = [
  { name: "max_tokens", title: TEXT.settings.maxTokens[0], step: 1, min: 1 },
  { name: "temperature", title: TEXT.settings.temperature[0], step: 0.05, min: 0 },
  { name: "top_p", title: TEXT.settings.topP[0], step: 0.01, min: 0 },
  { name: "top_k", title: TEXT.settings.topK[0], step: 1, min: 0 },
  { name: "min_p", title: TEXT.settings.minP[0], step: 0.01, min: 0 },
  { name: "seed", title: TEXT.settings.seed[0], step: 1, min: 0 },
];

/** A prompt without a chat template, and its completion. */
export function Completion() {
  return (
    <div class="bench">
      <form class="panel controls" {...sentBy(run)}>
        <ModelPicker chosen={model} kind="generation" />
        <Literal rows={7} value={prompt}>
          {TEXT.playground.prompt}
        </Literal>
        <div class="parameters">
          {FIELDS.map(({ name, title, step, min }) => (
            <label key={name}>
              {title}
              <input
                type="number"
                inputMode="decimal"
                step={step}
                min={min}
                placeholder={TEXT.playground.default}
                value={numbers.value[name] ?? ""}
                onInput={(event) => {
                  numbers.value = { ...numbers.value, [name]: event.currentTarget.value };
                }}
              />
            </label>
          ))}
        </div>
        <Literal rows={2} value={stop}>
          {TEXT.playground.stop} <span class="quiet">{TEXT.playground.onePerLine}</span>
        </Literal>
        <Check value={alternatives}>{TEXT.playground.showAlternatives}</Check>
        <div class="run">
          {running.value ? (
            <button type="button" onClick={() => running.value?.abort()}>
              {TEXT.app.stop}
            </button>
          ) : (
            <button type="submit" class="primary" disabled={!isFit(model.value, "generation")}>
              {TEXT.playground.complete}
            </button>
          )}
          <CopyCall path="/v1/completions" body={bodyOf(form.value)} />
        </div>
      </form>
      <Result
        label={TEXT.playground.completion}
        busy={running.value !== null}
        problem={problem.value}
        hint={TEXT.playground.completionHint}
      >
        {answer.value && <Told answer={answer.value} />}
      </Result>
    </div>
  );
}

function Told({ answer }: { answer: Answer }) {
  return (
    <>
      {answer.tokens.length > 0 ? (
        <JudgedText tokens={answer.tokens} />
      ) : (
        <p class="answer-text literal">{answer.text}</p>
      )}
      <p class="quiet small facts" role="status">
        {running.value ? TEXT.playground.generating : factsOf(answer)}
      </p>
    </>
  );
}

function factsOf({ finish, timings }: Answer): string {
  const endings: Record<string, string> = TEXT.playground.endings;
  const ended = endings[finish ?? ""] ?? finish ?? TEXT.playground.stopped;
  if (!timings) return ended;
  const { prompt_n, cache_n, predicted_n, predicted_per_second } = timings;
  const speed = predicted_per_second > 0 ? TEXT.playground.speed(predicted_per_second.toFixed(1)) : "";
  return TEXT.playground.facts(ended, predicted_n, speed, prompt_n + cache_n, cache_n);
}

async function run(): Promise<void> {
  if (running.value || !isFit(model.value, "generation")) return;
  const stopping = new AbortController();
  running.value = stopping;
  problem.value = null;
  answer.value = NOTHING;
  try {
    for await (const { event, data } of postEvents("/v1/completions", bodyOf(form.value), stopping.signal)) {
      if (event === "error") throw errorOf(JSON.parse(data), 200);
      if (data !== "[DONE]") answer.value = extended(answer.value, JSON.parse(data) as Chunk);
    }
  } catch (error) {
    if (!stopping.signal.aborted)
      problem.value = error instanceof ApiError ? error.message : TEXT.playground.connectionLost;
  }
  if (problem.value !== null && answer.value.text === "") answer.value = null;
  running.value = null;
}
