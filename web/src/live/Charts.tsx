import "./charts.css";
import { signal } from "@preact/signals";
import { TEXT } from "../text";
import { Chart } from "./Chart";
import { type Column, KEPT, QUANTILE_SPAN, seriesOf } from "./history";
import { history, state } from "./stream";
import { count, rate, seconds } from "./words";

const SPANS = [60, 300, KEPT];
const span = signal(300);
/** The model that is shown, or all of them. */
const subject = signal<string | null>(null);

/** The last minutes: throughput, latency and the number of requests. */
export function Charts() {
  const models = (state.value?.models ?? []).filter(({ kind }) => kind === "generation").map(({ id }) => id);
  const chosen = subject.value !== null && models.includes(subject.value) ? subject.value : null;
  const series = seriesOf(history.value, span.value, chosen);
  const common = { times: series.times, span: span.value };
  return (
    <section class="charts" aria-label={TEXT.live.recent}>
      <div class="charts-choice">
        <h2>{TEXT.live.recent}</h2>
        {models.length > 1 && (
          <label>
            <span class="hidden-visually">{TEXT.live.modelOfCharts}</span>
            <select
              value={chosen ?? ""}
              onChange={(event) => {
                subject.value = event.currentTarget.value || null;
              }}
            >
              <option value="">{TEXT.live.allModels}</option>
              {models.map((id) => (
                <option key={id} value={id}>
                  {id}
                </option>
              ))}
            </select>
          </label>
        )}
        <fieldset class="spans">
          <legend class="hidden-visually">{TEXT.live.span}</legend>
          {SPANS.map((choice) => (
            <button
              key={choice}
              type="button"
              aria-pressed={span.value === choice}
              onClick={() => {
                span.value = choice;
              }}
            >
              {TEXT.live.minutes(choice / 60)}
            </button>
          ))}
        </fieldset>
      </div>
      <Chart
        {...common}
        title={TEXT.live.charts.tokens}
        compressed
        write={rate}
        lines={[
          { name: TEXT.live.lines.generated, colour: "--accent", values: series.answered, fill: true },
          { name: TEXT.live.lines.prompt, colour: "--hot", values: series.read },
          { name: TEXT.live.lines.cached, colour: "--stored", values: series.cached, dash: [5, 3] },
        ]}
      />
      <Chart {...common} title={TEXT.live.charts.first} {...waits(series.firstTokenMedian, series.firstTokenSlow)} />
      <Chart {...common} title={TEXT.live.charts.inter} {...waits(series.interTokenMedian, series.interTokenSlow)} />
      <Chart
        {...common}
        title={TEXT.live.charts.requests}
        whole
        write={count}
        lines={[
          { name: TEXT.live.lines.running, colour: "--accent", values: series.running, fill: true },
          { name: TEXT.live.lines.waiting, colour: "--hot", values: series.waiting, dash: [5, 3] },
        ]}
      />
    </section>
  );
}

/** The latency: the median and a high percentile. */
function waits(median: Column, slow: Column) {
  return {
    note: TEXT.live.over(QUANTILE_SPAN),
    write: seconds,
    lines: [
      { name: "p50", colour: "--accent", values: median },
      { name: "p95", colour: "--hot", values: slow, dash: [5, 3] },
    ],
  };
}
