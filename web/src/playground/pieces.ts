/** Makes every token visible, also spaces, control tokens and partial characters. */

/** A token of `POST /tokenize`: its text, or its bytes if they are not valid text. */
export interface TokenPiece {
  id: number;
  piece: string | readonly number[];
}

export interface Shown {
  kind: "text" | "control" | "bytes";
  text: string;
  /** The number of line breaks in it. */
  breaks: number;
}

/** Names such as `<|im_end|>`, `</s>` and `[CLS]`: how vocabularies write control tokens. */
const CONTROL = /^(<\|.+\|>|<\/?s>|<(bos|eos|pad|unk|mask|start_of_turn|end_of_turn)>|\[(CLS|SEP|PAD|UNK|MASK)\])$/;

export function shown(piece: string | readonly number[]): Shown {
  if (typeof piece !== "string") return { kind: "bytes", text: piece.map(hex).join(" "), breaks: 0 };
  // Log probabilities write partial characters as OpenAI does.
  if (piece.startsWith("bytes:\\x")) {
    return { kind: "bytes", text: piece.slice("bytes:".length).replaceAll("\\x", " ").trim(), breaks: 0 };
  }
  if (piece === "") return { kind: "control", text: "∅", breaks: 0 };
  return { kind: CONTROL.test(piece) ? "control" : "text", text: visible(piece), breaks: piece.split("\n").length - 1 };
}

function hex(byte: number): string {
  return byte.toString(16).padStart(2, "0");
}

/** White space at the edges of tokens matters, so it is shown. Unicode has pictures for control characters. */
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
