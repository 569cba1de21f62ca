import { signal } from "@preact/signals";
import { postJson } from "../api/client";
import { TEXT } from "../text";
import { CopyCall } from "./CopyCall";
import { isFit, ModelPicker } from "./ModelPicker";
import { question } from "./question";
import { Result } from "./Result";

interface Ranked {
  results: { index: number; relevance_score: number }[];
  documents: readonly string[];
  tokens: number;
}

const model = signal("");
const query = signal("What do horses eat?");
const documents = signal(
  ["Horses eat grass and hay.", "The train leaves at noon.", "A mare drinks forty litres of water a day."].join("\n"),
);
const { answer, problem, asking, ask } = question<Ranked>();

/** Documents in the order of their relevance to a query. */
export function Rerank() {
  const given = documents.value.split("\n").filter((line) => line.trim() !== "");
  return (
    <div class="bench">
      <form
        class="panel controls"
        onSubmit={(event) => {
          event.preventDefault();
          void ask(() => rank(given));
        }}
      >
        <ModelPicker chosen={model} kind="reranking" />
        <label>
          {TEXT.playground.query}
          <input
            value={query.value}
            onInput={(event) => {
              query.value = event.currentTarget.value;
            }}
          />
        </label>
        <label>
          {TEXT.playground.documents} <span class="quiet small">{TEXT.playground.onePerLine}</span>
          <textarea
            rows={8}
            value={documents.value}
            onInput={(event) => {
              documents.value = event.currentTarget.value;
            }}
          />
        </label>
        <div class="run">
          <button
            type="submit"
            class="primary"
            disabled={
              asking.value || given.length === 0 || query.value.trim() === "" || !isFit(model.value, "reranking")
            }
          >
            {TEXT.playground.rank}
          </button>
          <CopyCall path="/v1/rerank" body={bodyOf(given)} />
        </div>
      </form>
      <Result
        label={TEXT.playground.ranking}
        busy={asking.value}
        problem={problem.value}
        hint={TEXT.playground.rankingHint}
      >
        {answer.value && <Ranking ranked={answer.value} />}
      </Result>
    </div>
  );
}

function Ranking({ ranked: { results, documents, tokens } }: { ranked: Ranked }) {
  return (
    <>
      <table class="ranking">
        <thead>
          <tr>
            <th scope="col">{TEXT.playground.score}</th>
            <th scope="col">{TEXT.playground.document}</th>
          </tr>
        </thead>
        <tbody>
          {results.map(({ index, relevance_score }) => (
            <tr key={index}>
              <td>{relevance_score.toFixed(3)}</td>
              <td>{documents[index]}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="quiet small facts" role="status">
        {TEXT.playground.ranked(results.length, tokens)}
      </p>
    </>
  );
}

function bodyOf(given: readonly string[]) {
  return { model: model.value, query: query.value, documents: given };
}

async function rank(given: readonly string[]): Promise<Ranked> {
  const { results, usage } = await postJson<{
    results: Ranked["results"];
    usage: { total_tokens: number };
  }>("/v1/rerank", bodyOf(given));
  const sorted = [...results].sort((left, right) => right.relevance_score - left.relevance_score);
  return { results: sorted, documents: given, tokens: usage.total_tokens };
}
