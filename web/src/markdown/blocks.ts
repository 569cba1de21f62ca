/**
 * Markdown → blocks that are rendered separately, so that a growing text changes only its end.
 *
 * Appended text changes at most the last two blocks: an incomplete line may turn out to continue
 * the previous block.
 */

export type Block = TextBlock | CodeBlock | MathBlock;

interface Common {
  /** Its start in the whole text. */
  start: number;
  source: string;
}

export interface TextBlock extends Common {
  kind: "text";
}

export interface CodeBlock extends Common {
  kind: "code";
  language: string;
  code: string;
  /** Whether its end was seen. */
  closed: boolean;
}

export interface MathBlock extends Common {
  kind: "math";
  tex: string;
}

const FENCE = /^(`{3,}|~{3,})[ \t]*([^\s`]*)[^`\n]*$/;
const MATH: [opens: string, closes: string][] = [
  ["$$", "$$"],
  ["\\[", "\\]"],
];
const ITEM = /^(?:[-*+]|\d{1,9}[.)])(?:\s|$)/;
const INDENTED = /^(?: {2,}|\t)/;
const QUOTED = /^(?:\s|>)+/;
/** What precedes a block in a list or a quotation. */
const NESTED = /^(?:\s|>|[-*+]\s|\d{1,9}[.)]\s)+/;
const BLANK = /^\s*$/;
/** Not a footnote, which is text. */
const DEFINITION = /^ {0,3}\[(?!\^)[^\]\n]+\]:[ \t]+\S+.*$/gm;

/** From this size on, a list is cut between two items and any text between two lines, so that each part stays small. */
const LARGE = 2_500;
const LONGEST_LINE = 8_000;

/** The blocks of a text that extends one whose blocks are known. */
export function extended(known: Block[], text: string): Block[] {
  const kept = known.slice(0, -2);
  const last = known.at(-2) ?? known.at(-1);
  return last === undefined ? blocksOf(text, 0) : [...kept, ...blocksOf(text, last.start)];
}

export function blocksOf(text: string, from = 0): Block[] {
  const blocks: Block[] = [];
  let open: Open | null = null;
  const close = (end: number) => {
    if (open) blocks.push(finished(open, text.slice(open.start, end)));
    open = null;
  };
  for (const { start, line } of lines(text, from)) {
    const current: Open | null = open;
    if (current !== null && continues(current, line, start)) continue;
    close(start);
    if (!BLANK.test(line)) open = begun(line, start);
  }
  close(text.length);
  return blocks;
}

/** Whether a block continues the previous list. */
export function continuesList(before: Block | undefined, { kind, source }: Block): boolean {
  return kind === "text" && before?.kind === "text" && ITEM.test(source) && ITEM.test(before.source);
}

/** Link definitions, which every block may use. */
export function definitionsIn(text: string): string {
  return text.includes("]:") ? (text.match(DEFINITION) ?? []).join("\n") : "";
}

/** Whether a text ends inside of a block of code, which may be in a list or a quotation. */
export function endsInCode(text: string): boolean {
  let fence = "";
  for (const line of text.split("\n")) {
    if (fence) {
      const mark = line.replace(QUOTED, "").trim();
      if (closesFence(mark, fence)) fence = "";
    } else {
      fence = FENCE.exec(line.replace(NESTED, ""))?.[1] ?? "";
    }
  }
  return fence !== "";
}

interface Open {
  start: number;
  kind: Block["kind"];
  /** The end marker of code and formulas. */
  closes: string;
  language: string;
  list: boolean;
  table: boolean;
  blank: boolean;
  closed: boolean;
}

function begun(line: string, start: number): Open {
  const plain = { start, closes: "", language: "", blank: false, closed: false };
  const fence = FENCE.exec(line);
  if (fence) {
    return { ...plain, kind: "code", closes: fence[1] ?? "", language: fence[2] ?? "", list: false, table: false };
  }
  const math = MATH.find(([opens]) => line.trimStart().startsWith(opens));
  if (math) {
    const [opens, closes] = math;
    const rest = line.trim().slice(opens.length);
    // More text on the same line makes it a paragraph with a formula.
    if (!rest.includes(closes) || rest.endsWith(closes)) {
      return { ...plain, kind: "math", closes, closed: rest.endsWith(closes), list: false, table: false };
    }
  }
  return { ...plain, kind: "text", list: ITEM.test(line), table: line.trimStart().startsWith("|") };
}

/** Whether a line belongs to the open block. Updates the block's state. */
function continues(open: Open, line: string, start: number): boolean {
  if (open.kind !== "text") {
    if (open.closed) return BLANK.test(line);
    if (open.kind === "math" && BLANK.test(line)) {
      // A formula has no empty lines, so this is not one.
      open.kind = "text";
      open.blank = true;
      return true;
    }
    open.closed = open.kind === "code" ? closesFence(line, open.closes) : line.trimEnd().endsWith(open.closes);
    return true;
  }
  if (BLANK.test(line)) {
    open.blank = true;
    return true;
  }
  const size = start - open.start;
  const item = ITEM.test(line);
  if (open.blank) {
    open.blank = false;
    return INDENTED.test(line) ? size < 10 * LARGE : open.list && item && size < LARGE;
  }
  if (FENCE.test(line) || (MATH.some(([opens]) => line.startsWith(opens)) && begun(line, start).kind === "math")) {
    return false;
  }
  if (open.table) return true;
  return size < LARGE || (open.list && !item && size < 10 * LARGE);
}

function closesFence(line: string, fence: string): boolean {
  const mark = line.trim();
  return mark.length >= fence.length && mark === (fence[0] ?? "").repeat(mark.length) && !/^ {4}/.test(line);
}

function finished(open: Open, source: string): Block {
  const { start, closed } = open;
  if (open.kind === "code") {
    const inner = source.slice(source.indexOf("\n") + 1 || source.length);
    // The last line is the fence, or may be its beginning.
    const ending = inner.trimEnd().lastIndexOf("\n") + 1;
    const fence = closed || [...inner.slice(ending)].every((character) => character === open.closes[0]);
    const code = fence ? inner.slice(0, ending) : inner;
    return {
      kind: "code",
      start,
      source,
      language: open.language.toLowerCase(),
      code: code.replace(/\n$/, ""),
      closed,
    };
  }
  // A formula without an end is text.
  if (open.kind === "math" && closed) return { kind: "math", start, source, tex: source.trim().slice(2, -2).trim() };
  return { kind: "text", start, source };
}

function* lines(text: string, from: number): Generator<{ start: number; line: string }> {
  let start = from;
  while (start < text.length) {
    const end = text.indexOf("\n", start);
    const whole = end < 0 ? text.length : end + 1;
    const stop = whole - start <= LONGEST_LINE ? whole : cut(text, start);
    yield { start, line: text.slice(start, text[stop - 1] === "\n" ? stop - 1 : stop) };
    start = stop;
  }
}

/** Where to cut a line that is too long: between two words, if possible. */
function cut(text: string, start: number): number {
  const space = text.lastIndexOf(" ", start + LONGEST_LINE - 1);
  return space > start + LONGEST_LINE / 2 ? space + 1 : start + LONGEST_LINE;
}
