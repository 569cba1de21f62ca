/** Assembles a streamed completion from its events. */

/** A token of the answer and its log probability. */
export interface JudgedToken {
  text: string;
  logprob: number | null;
  /** The likeliest tokens in its place, including itself, the likeliest first. */
  alternatives: readonly (readonly [string, number])[];
}

export interface Timings {
  cache_n: number;
  prompt_n: number;
  prompt_per_second: number;
  predicted_n: number;
  predicted_per_second: number;
}

export interface Answer {
  text: string;
  tokens: readonly JudgedToken[];
  finish: string | null;
  timings: Timings | null;
}

export interface Chunk {
  choices: {
    text: string;
    finish_reason: string | null;
    logprobs?: {
      tokens: string[];
      token_logprobs: (number | null)[];
      top_logprobs: (Record<string, number> | null)[];
    } | null;
  }[];
  timings?: Timings;
}

export const NOTHING: Answer = { text: "", tokens: [], finish: null, timings: null };

export function extended(answer: Answer, { choices: [choice], timings }: Chunk): Answer {
  const told = timings ?? answer.timings;
  if (!choice) return { ...answer, timings: told };
  const judged = choice.logprobs;
  const added = (judged?.tokens ?? []).map((text, place) => ({
    text,
    logprob: judged?.token_logprobs[place] ?? null,
    alternatives: Object.entries(judged?.top_logprobs[place] ?? {}).sort(([, left], [, right]) => right - left),
  }));
  return {
    text: answer.text + choice.text,
    tokens: added.length > 0 ? [...answer.tokens, ...added] : answer.tokens,
    finish: choice.finish_reason ?? answer.finish,
    timings: told,
  };
}

/** The fields of the form. Empty ones are left to the server. */
export interface Form {
  model: string;
  prompt: string;
  numbers: Readonly<Record<string, string>>;
  /** One per line. */
  stop: string;
  alternatives: boolean;
}

/** The most alternatives that the API returns. */
const ALTERNATIVES = 5;

export function bodyOf({ model, prompt, numbers, stop, alternatives }: Form) {
  const given = Object.entries(numbers).filter(([, value]) => value.trim() !== "");
  const stops = stop.split("\n").filter((line) => line !== "");
  return {
    model,
    prompt,
    ...Object.fromEntries(given.map(([name, value]) => [name, Number(value)])),
    ...(stops.length > 0 && { stop: stops }),
    ...(alternatives && { logprobs: ALTERNATIVES }),
    stream: true,
    stream_options: { include_usage: true },
  };
}
