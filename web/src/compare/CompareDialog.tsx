import "./compare.css";
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { model as current, keepBeside } from "../chat/session";
import { seconds } from "../chat/statistics";
import type { AnswerMessage } from "../chat/tree";
import { state, watch } from "../live/stream";
import { bytes, count, rate } from "../live/words";
import { talkers } from "../models/watching";
import { TEXT } from "../text";
import { Dialog } from "../ui/Dialog";
import { type Column, newColumn, run } from "./columns";
import { diff } from "./diff";

const MOST = 4;

/** One prompt to several models, or to one with several settings, at once. */
export function CompareDialog({ message, onClose }: { message: AnswerMessage; onClose: () => void }) {
  const columns = useSignal<Column[]>([]);
  const deterministic = useSignal(false);
  const showDiff = useSignal(false);
  useEffect(watch, []);
  useEffect(() => {
    const own = current.value?.id ?? message.model ?? "";
    const other = talkers.value.find(({ id, broken }) => id !== own && !broken)?.id ?? own;
    columns.value = [own, other].map((model) => newColumn({ model, temperature: "", seed: "" }));
    return () => {
      for (const { running } of columns.value) running.value?.abort();
    };
  }, []);
  const isRunning = columns.value.some(({ running }) => running.value !== null);
  const first = columns.value[0]?.written.value?.content ?? "";

  return (
    <Dialog title={TEXT.compare.title} onClose={onClose} wide>
      <div class="compare-head">
        <button
          type="button"
          class="primary"
          disabled={isRunning}
          onClick={() => {
            for (const column of columns.value) void run(column, message, deterministic.value);
          }}
        >
          {TEXT.compare.run}
        </button>
        <button
          type="button"
          disabled={columns.value.length >= MOST}
          onClick={() => {
            const choice = columns.value.at(-1)?.choice.value ?? { model: "", temperature: "", seed: "" };
            columns.value = [...columns.value, newColumn(choice)];
          }}
        >
          {TEXT.compare.add}
        </button>
        <label class="check">
          <input
            type="checkbox"
            checked={deterministic.value}
            onChange={(event) => {
              deterministic.value = event.currentTarget.checked;
            }}
          />{" "}
          {TEXT.compare.deterministic}
        </label>
        <label class="check">
          <input
            type="checkbox"
            checked={showDiff.value}
            onChange={(event) => {
              showDiff.value = event.currentTarget.checked;
            }}
          />{" "}
          {TEXT.compare.diff}
        </label>
      </div>
      <div class="compare-columns">
        {columns.value.map((column, place) => (
          <ColumnView
            key={column.id}
            column={column}
            number={place + 1}
            against={showDiff.value && place > 0 && !isRunning ? first : null}
            onRemove={
              columns.value.length > 2
                ? () => {
                    column.running.value?.abort();
                    columns.value = columns.value.filter((other) => other !== column);
                  }
                : null
            }
            onKeep={() => {
              const written = column.written.value;
              if (written) void keepBeside(message, written, column.choice.value.model);
              onClose();
            }}
          />
        ))}
      </div>
    </Dialog>
  );
}

interface ColumnProps {
  column: Column;
  number: number;
  /** The text to show the differences to. */
  against: string | null;
  onRemove: (() => void) | null;
  onKeep: () => void;
}

function ColumnView({ column, number, against, onRemove, onKeep }: ColumnProps) {
  const { choice, written, problem, running } = column;
  const change = (fields: Partial<typeof choice.value>) => {
    choice.value = { ...choice.value, ...fields };
  };
  const answer = written.value;
  const isRunning = running.value !== null;
  return (
    <section class="compare-column" aria-label={TEXT.compare.column(number)} aria-busy={isRunning}>
      <div class="compare-choice">
        <select
          aria-label={TEXT.compare.model}
          value={choice.value.model}
          onChange={(event) => change({ model: event.currentTarget.value })}
        >
          {talkers.value.map(({ id, broken }) => (
            <option key={id} disabled={broken}>
              {id}
            </option>
          ))}
        </select>
        <input
          aria-label={TEXT.settings.temperature[0]}
          placeholder={TEXT.settings.temperature[0]}
          inputMode="decimal"
          value={choice.value.temperature}
          onInput={(event) => change({ temperature: event.currentTarget.value })}
        />
        <input
          aria-label={TEXT.settings.seed[0]}
          placeholder={TEXT.settings.seed[0]}
          inputMode="numeric"
          value={choice.value.seed}
          onInput={(event) => change({ seed: event.currentTarget.value })}
        />
      </div>
      <Facts column={column} />
      {problem.value && (
        <p class="problem" role="alert">
          {problem.value}
        </p>
      )}
      <div class="compare-text">
        {against === null || !answer ? (
          answer?.content || answer?.reasoning
        ) : (
          <Difference before={against} after={answer.content} />
        )}
      </div>
      <div class="compare-actions">
        <button type="button" disabled={isRunning || !answer?.content} onClick={onKeep}>
          {TEXT.compare.keep}
        </button>
        {onRemove && (
          <button type="button" class="plain" onClick={onRemove}>
            {TEXT.compare.remove}
          </button>
        )}
      </div>
    </section>
  );
}

/** Speed, cached tokens and memory, while the answer is generated. */
function Facts({ column: { choice, written, running } }: { column: Column }) {
  const answer = written.value;
  const live = state.value?.models.find(({ id }) => id === choice.value.model);
  const memory = (live?.gpu_memory ?? 0) + (live?.memory ?? 0);
  const statistics = answer?.statistics;
  const words = [
    statistics?.tokensPerSecond ? TEXT.statistics.speed(rate(statistics.tokensPerSecond)) : null,
    statistics ? TEXT.compare.tokens(count(statistics.answerTokens)) : null,
    statistics ? TEXT.statistics.prompt(count(statistics.promptTokens), count(statistics.cachedTokens)) : null,
    answer?.firstToken != null ? TEXT.statistics.firstToken(seconds(answer.firstToken)) : null,
    memory > 0 ? TEXT.compare.memory(bytes(memory)) : null,
  ].filter((word) => word !== null);
  return (
    <p class="compare-facts small quiet">
      {running.value !== null && <span class="dot" />}
      {words.join(" · ") || TEXT.compare.notRun}
    </p>
  );
}

function Difference({ before, after }: { before: string; after: string }) {
  const parts = diff(before, after);
  if (parts.every(({ kind }) => kind === "same")) return <p class="quiet">{TEXT.compare.identical}</p>;
  return (
    <>
      {parts.map(({ kind, text }, place) =>
        kind === "same" ? text : kind === "added" ? <ins key={place}>{text}</ins> : <del key={place}>{text}</del>,
      )}
    </>
  );
}
