/** Cuts an answer into its tokens, and reads the alternatives to one of them. */

import type { TokenPiece } from "../playground/pieces";

/** A token, or several that make up one character, and what precedes it. */
export interface Unit {
  text: string;
  start: number;
}

/**
 * The tokens of a text. Some vocabularies put a space before a text. If the pieces do not make up the text in another
 * way either, its words stand for the tokens.
 */
export function unitsOf(text: string, pieces: readonly TokenPiece[]): Unit[] {
  const texts = joined(pieces);
  if (texts[0]?.startsWith(" ") && !text.startsWith(" ")) texts[0] = texts[0].slice(1);
  const found = texts.join("") === text ? texts : (text.match(/\s*\S+|\s+/g) ?? []);
  const units: Unit[] = [];
  let start = 0;
  for (const unit of found) {
    if (unit !== "") units.push({ text: unit, start });
    start += unit.length;
  }
  return units;
}

/** Tokens that hold parts of a character are put together. */
function joined(pieces: readonly TokenPiece[]): string[] {
  const texts: string[] = [];
  let bytes: number[] = [];
  const end = () => {
    if (bytes.length > 0) texts.push(new TextDecoder().decode(new Uint8Array(bytes)));
    bytes = [];
  };
  for (const { piece } of pieces) {
    if (typeof piece !== "string") {
      bytes.push(...piece);
      if (isComplete(bytes)) end();
    } else {
      end();
      texts.push(piece);
    }
  }
  end();
  return texts;
}

function isComplete(bytes: readonly number[]): boolean {
  try {
    new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(bytes));
    return true;
  } catch {
    return false;
  }
}

export interface Alternative {
  /** Empty: the answer ends here. */
  text: string;
  /** From 0 to 1. */
  probability: number;
  /** A part of a character, which no text can go on from. */
  isPartial: boolean;
}

export interface LogprobsAnswer {
  choices: {
    logprobs?: {
      content?: { top_logprobs: { token: string; logprob: number; bytes: number[] | null }[] }[];
    } | null;
  }[];
}

/** The likeliest tokens, from an answer of one token with `top_logprobs`. */
export function alternativesIn({ choices: [choice] }: LogprobsAnswer): Alternative[] {
  const found = choice?.logprobs?.content?.[0]?.top_logprobs ?? [];
  return found.map(({ token, logprob, bytes }) => ({
    text: token,
    probability: Math.exp(logprob),
    isPartial: bytes !== null && bytes.length > 0 && !isComplete(bytes),
  }));
}
