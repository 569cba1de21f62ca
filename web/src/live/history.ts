/** The last ten minutes: a sample of all counters each second, and the rates between samples. */

import type { Histogram, LiveModel, LiveState, Totals } from "../api/live";
import { runningIn } from "./pools";
import { between, increase, quantile, sum } from "./quantiles";

/** Seconds that are kept. */
export const KEPT = 600;
/** Rates are averaged over this many seconds, because workers and the server report once a second. */
const RATE_SPAN = 5;
/** First tokens are rare, so their times are taken from a longer period. */
export const QUANTILE_SPAN = 30;
/** With a longer gap between two samples the page was hidden, and no line is drawn. */
const GAP = 4;

export interface ModelSample {
  totals: Totals;
  firstToken: Histogram;
  interToken: Histogram;
  running: number;
  waiting: number;
  /** The tokens that each replica has generated. */
  replicas: ReadonlyMap<string, number>;
}

export interface Sample {
  time: number;
  models: ReadonlyMap<string, ModelSample>;
}

/** One value for each time; null: unknown. */
export type Column = (number | null)[];

export interface Series {
  times: number[];
  read: Column;
  cached: Column;
  answered: Column;
  firstTokenMedian: Column;
  firstTokenSlow: Column;
  interTokenMedian: Column;
  interTokenSlow: Column;
  running: Column;
  waiting: Column;
}

/** How fast a model is now. */
export interface Pace {
  read: number;
  answered: number;
  preemptions: number;
}

export function sampleOf(state: LiveState): Sample {
  return { time: state.time, models: new Map(state.models.map((model) => [model.id, numbersOf(model)])) };
}

/** The history with one more sample, without old samples and, after a change of the server's clock, future ones. */
export function remember(history: readonly Sample[], sample: Sample): Sample[] {
  const kept = history.filter(({ time }) => time < sample.time && time >= sample.time - KEPT);
  return [...kept, sample];
}

/** What happened in the last `seconds`, for one model or for all. */
export function seriesOf(history: readonly Sample[], seconds: number, model: string | null): Series {
  const series: Series = {
    times: [],
    read: [],
    cached: [],
    answered: [],
    firstTokenMedian: [],
    firstTokenSlow: [],
    interTokenMedian: [],
    interTokenSlow: [],
    running: [],
    waiting: [],
  };
  const latest = history.at(-1)?.time ?? 0;
  history.forEach((sample, place) => {
    const previous = history[place - 1];
    if (sample.time < latest - seconds) return;
    if (previous && sample.time - previous.time > GAP && series.times.length > 0) {
      add(series, sample.time - GAP / 2, {});
    }
    add(series, sample.time, valuesAt(history, place, model));
  });
  return series;
}

/** The speed of each model in the last seconds, without models that have only one sample. */
export function paces(history: readonly Sample[]): Map<string, Pace> {
  const last = history.at(-1);
  const base = baseOf(history, history.length - 1, RATE_SPAN);
  const found = new Map<string, Pace>();
  if (!last || !base) return found;
  for (const id of last.models.keys()) {
    const [grown] = growth(base, last, id);
    if (!grown) continue;
    const seconds = last.time - base.time;
    found.set(id, {
      read: grown.totals.prompt_tokens / seconds,
      answered: grown.totals.answered_tokens / seconds,
      preemptions: grown.totals.preemptions,
    });
  }
  return found;
}

/** The tokens that each replica of a model generates in a second. */
export function replicaRates(history: readonly Sample[], model: string): Map<string, number> {
  const last = history.at(-1);
  const base = baseOf(history, history.length - 1, RATE_SPAN);
  const before = base?.models.get(model)?.replicas;
  const rates = new Map<string, number>();
  if (!last || !base || !before) return rates;
  for (const [name, tokens] of last.models.get(model)?.replicas ?? []) {
    const old = before.get(name);
    if (old !== undefined) rates.set(name, increase(old, tokens) / (last.time - base.time));
  }
  return rates;
}

function numbersOf(model: LiveModel): ModelSample {
  const { totals, first_token, inter_token, waiting, replicas } = model;
  return {
    totals,
    firstToken: first_token,
    interToken: inter_token,
    running: runningIn(model),
    waiting,
    replicas: new Map(replicas.map(({ name, answered_tokens }) => [name, answered_tokens])),
  };
}

type Values = Partial<Record<Exclude<keyof Series, "times">, number | null>>;

function add(series: Series, time: number, values: Values): void {
  for (const [name, column] of Object.entries(series) as [keyof Series, Column][]) {
    column.push(name === "times" ? time : (values[name] ?? null));
  }
}

function valuesAt(history: readonly Sample[], place: number, model: string | null): Values {
  const sample = history[place];
  if (!sample) return {};
  const models = model === null ? [...sample.models.values()] : [sample.models.get(model)].filter((one) => !!one);
  return {
    running: total(models, ({ running }) => running),
    waiting: total(models, ({ waiting }) => waiting),
    ...ratesAt(history, place, model),
    ...timesAt(history, place, model),
  };
}

function ratesAt(history: readonly Sample[], place: number, model: string | null): Values {
  const [sample, base] = [history[place], baseOf(history, place, RATE_SPAN)];
  if (!sample || !base) return {};
  const grown = growth(base, sample, model);
  const rate = (of: (totals: Totals) => number) => total(grown, ({ totals }) => of(totals)) / (sample.time - base.time);
  return {
    read: rate((totals) => totals.prompt_tokens),
    cached: rate((totals) => totals.cached_tokens),
    answered: rate((totals) => totals.answered_tokens),
  };
}

function timesAt(history: readonly Sample[], place: number, model: string | null): Values {
  const [sample, base] = [history[place], baseOf(history, place, QUANTILE_SPAN)];
  if (!sample || !base) return {};
  const grown = growth(base, sample, model);
  const first = sum(grown.map(({ firstToken }) => firstToken));
  const inter = sum(grown.map(({ interToken }) => interToken));
  return {
    firstTokenMedian: quantile(first, 0.5),
    firstTokenSlow: quantile(first, 0.95),
    interTokenMedian: quantile(inter, 0.5),
    interTokenSlow: quantile(inter, 0.95),
  };
}

/** The oldest sample that is at most `span` seconds older than this one, if there is one besides it. */
function baseOf(history: readonly Sample[], place: number, span: number): Sample | undefined {
  const sample = history[place];
  if (!sample) return undefined;
  let base = place;
  while (base > 0 && (history[base - 1]?.time ?? 0) >= sample.time - span) base--;
  return base < place ? history[base] : undefined;
}

/** The increments between two samples, for one model or for each. A new model has none. */
function growth(before: Sample, now: Sample, model: string | null): ModelSample[] {
  const ids = model === null ? [...now.models.keys()] : [model];
  return ids.flatMap((id) => {
    const [old, fresh] = [before.models.get(id), now.models.get(id)];
    if (!old || !fresh) return [];
    const totals = Object.fromEntries(
      (Object.keys(fresh.totals) as (keyof Totals)[]).map((name) => [
        name,
        increase(old.totals[name], fresh.totals[name]),
      ]),
    ) as Record<keyof Totals, number>;
    return {
      ...fresh,
      totals,
      firstToken: between(old.firstToken, fresh.firstToken),
      interToken: between(old.interToken, fresh.interToken),
    };
  });
}

function total<T>(items: readonly T[], of: (item: T) => number): number {
  return items.reduce((all, item) => all + of(item), 0);
}
