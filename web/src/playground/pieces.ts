/** Tokens as they can be shown: each of them visible, also where it is a space, a control token or half a character. */

/** A token of `POST /tokenize`: its text, or its bytes where they are no text by themselves. */
export interface TokenPiece {
  id: number;
  piece: string | readonly number[];
}

export interface Shown {
  kind: "text" | "control" | "bytes";
  text: string;
  /** How many lines end in it. */
  breaks: number;
}

/** Names such as `<|im_end|>`, `</s>` and `[CLS]`: how vocabularies write tokens that stand for no text. */
const CONTROL = /^(<\|.+\|>|<\/?s>|<(bos|eos|pad|unk|mask|start_of_turn|end_of_turn)>|\[(CLS|SEP|PAD|UNK|MASK)\])$/;

export function shown(piece: string | readonly number[]): Shown {
  if (typeof piece !== "string") return { kind: "bytes", text: piece.map(hex).join(" "), breaks: 0 };
  // In log-probabilities parts of characters come as OpenAI writes them.
  if (piece.startsWith("bytes:\\x")) {
    return { kind: "bytes", text: piece.slice("bytes:".length).replaceAll("\\x", " ").trim(), breaks: 0 };
  }
  if (piece === "") return { kind: "control", text: "∅", breaks: 0 };
  return { kind: CONTROL.test(piece) ? "control" : "text", text: visible(piece), breaks: piece.split("\n").length - 1 };
}

function hex(byte: number): string {
  return byte.toString(16).padStart(2, "0");
}

/** White space at the edges of tokens matters, so it is drawn; control characters have pictures in Unicode. */
function visible(text: string): string {
  return text
    .replaceAll("\n", "⏎")
    .replaceAll("\t", "⇥")
    .replace(/^ +| +$/g, (spaces) => "·".repeat(spaces.length))
    .replace(/\p{Cc}/gu, (character) => picture(character.charCodeAt(0)));
}

function picture(code: number): string {
  return code < 0x20 ? String.fromCodePoint(0x2400 + code) : `\\x${hex(code)}`;
}
