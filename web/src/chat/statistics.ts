/** The statistics under an answer, as text. */

import { TEXT } from "../text";
import type { AnswerMessage } from "./tree";

const ENDINGS: Record<string, string> = TEXT.statistics.endings;

export function statisticsOf(answer: AnswerMessage, writing: boolean): string[] {
  const { statistics, firstToken, finish, open, problem } = answer;
  const words: string[] = answer.model === null ? [] : [answer.model];
  if (statistics?.tokensPerSecond) words.push(TEXT.statistics.speed(oneDigit(statistics.tokensPerSecond)));
  if (statistics) {
    words.push(counted(statistics.answerTokens, "token"));
    const cached = statistics.cachedTokens > 0 ? whole(statistics.cachedTokens) : null;
    words.push(TEXT.statistics.prompt(whole(statistics.promptTokens), cached));
  }
  if (firstToken !== null) words.push(TEXT.statistics.firstToken(seconds(firstToken)));
  if (!writing && !open && problem === null)
    words.push(finish === null ? TEXT.statistics.stopped : (ENDINGS[finish] ?? finish));
  return words;
}

export function seconds(value: number): string {
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${oneDigit(value)} s`;
  return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}

function counted(count: number, what: string): string {
  return `${whole(count)} ${what}${count === 1 ? "" : "s"}`;
}

function oneDigit(value: number): string {
  return value >= 100 ? String(Math.round(value)) : value.toFixed(1);
}

function whole(value: number): string {
  return value.toLocaleString("en");
}
