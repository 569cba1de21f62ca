/** Footnotes, for marked: `[^1]` in the text, and `[^1]: …` where the note stands. */

import type { MarkedExtension, TokenizerAndRendererExtension, Tokens } from "marked";

const reference: TokenizerAndRendererExtension = {
  name: "footnote",
  level: "inline",
  start: (text) => indexOf(text, /\[\^/),
  tokenizer(text) {
    const match = /^\[\^([^\]\s]+)\]/.exec(text);
    return match ? { type: "footnote", raw: match[0], label: match[1] } : undefined;
  },
  renderer: ({ label }) => `<sup>${escaped(String(label))}</sup>`,
};

const note: TokenizerAndRendererExtension = {
  name: "note",
  level: "block",
  start: (text) => indexOf(text, /^\[\^[^\]\s]+\]:/m),
  tokenizer(text) {
    const match = /^\[\^([^\]\s]+)\]:[ \t]*([^\n]*(?:\n(?:[ \t]+\S|(?!\[\^)\S)[^\n]*)*)(?:\n+|$)/.exec(text);
    if (!match) return undefined;
    return { type: "note", raw: match[0], label: match[1], tokens: this.lexer.inlineTokens(match[2] ?? "") };
  },
  renderer({ label, tokens }: Tokens.Generic) {
    return `<p class="footnote"><sup>${escaped(String(label))}</sup> ${this.parser.parseInline(tokens ?? [])}</p>`;
  },
};

export const footnotes: MarkedExtension = { extensions: [reference, note] };

function indexOf(text: string, pattern: RegExp): number | undefined {
  return pattern.exec(text)?.index;
}

function escaped(text: string): string {
  return text.replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);
}
