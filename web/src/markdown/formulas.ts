/** Inline formulas, for marked: \( … \), $ … $, and $$ … $$ or \[ … \] beside other text. */

import type { MarkedExtension, TokenizerAndRendererExtension } from "marked";

// A dollar sign that looks like an amount of money starts no formula.
const INLINE = /^\$(?![\s$])((?:\\.|[^\\$\n])+?)(?<![\s\\])\$(?![\d\w])/;
const PAIRS: [RegExp, display: boolean][] = [
  [/^\$\$([^$]+?)\$\$/, true],
  [/^\\\[([\s\S]+?)\\\]/, true],
  [/^\\\(([\s\S]+?)\\\)/, false],
  [INLINE, false],
];
const BEGINS = /\$|\\\(|\\\[/;

const formula: TokenizerAndRendererExtension = {
  name: "formula",
  level: "inline",
  start: (text) => BEGINS.exec(text)?.index,
  tokenizer(text) {
    for (const [pattern, display] of PAIRS) {
      const match = pattern.exec(text);
      if (match) return { type: "formula", raw: match[0], tex: (match[1] ?? "").trim(), display };
    }
    return undefined;
  },
  renderer: ({ tex, display }) =>
    `<span class="${display ? "formula formula-display" : "formula"}">${escaped(String(tex))}</span>`,
};

export const formulas: MarkedExtension = { extensions: [formula] };

function escaped(text: string): string {
  return text.replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);
}
