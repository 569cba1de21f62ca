/** Numbers as people read them. */

import type { Totals } from "../api/live";
import { TEXT } from "../text";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(value: number): string {
  return whole.format(value);
}

/** `1 slot`, `2 slots`. */
export function counted(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** Three digits at most, so that a changing number keeps its width. */
export function rate(value: number): string {
  return value >= 9.95 || value === 0 ? count(value) : value.toFixed(1);
}

export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let [unit, rest] = [0, value];
  while (rest >= 999.5 && unit < units.length - 1) {
    rest /= 1024;
    unit++;
  }
  return `${rest >= 9.95 || unit === 0 ? count(rest) : rest.toFixed(1)} ${units[unit]}`;
}

/** A measured duration, from microseconds to minutes. */
export function seconds(value: number): string {
  if (value === 0) return "0";
  if (value < 0.9995) return `${(value * 1000).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  return value < 999.5 ? `${value.toFixed(value < 9.95 ? 1 : 0)} s` : duration(value);
}

/** An approximate duration in the future. */
export function duration(value: number): string {
  if (value < 99.5) return `${count(value)} s`;
  return value < 90 * 60 ? `${count(value / 60)} min` : `${count(value / 3600)} h`;
}

export function percent(share: number): string {
  return `${count(share * 100)}%`;
}

/** The guessed tokens of an answer or a model. Null: there are none. */
export function guesses({
  drafted_tokens: drafted,
  accepted_tokens: accepted,
}: Pick<Totals, "drafted_tokens" | "accepted_tokens">): string | null {
  return drafted > 0 ? TEXT.live.guessed(count(drafted), count(accepted), percent(accepted / drafted)) : null;
}

/** `a`, `a and b`, `a, b and c`. */
export function listed(names: readonly string[]): string {
  if (names.length < 2) return names.join("");
  return `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}
