/** Later additions to rendered Markdown: frames around code inside lists and quotations, and formulas. */

import { endsInCode } from "./blocks";
import { codeFrame } from "./code";

const LONGEST_FORMULA = 4_000;

/** `source` is the Markdown of the element. */
export function decorate(element: HTMLElement, source: string): void {
  const all = [...element.querySelectorAll("pre")];
  for (const pre of all) {
    const language = /language-(\S+)/.exec(pre.firstElementChild?.className ?? "")?.[1] ?? "";
    const code = (pre.textContent ?? "").replace(/\n$/, "");
    const closed = pre !== all.at(-1) || !endsInCode(source);
    pre.replaceWith(codeFrame({ language: language.toLowerCase(), code, closed }));
  }
  for (const formula of element.querySelectorAll<HTMLElement>(".formula")) {
    showFormula(formula, formula.classList.contains("formula-display"));
  }
}

/** Turn an element's TeX into a formula. Invalid TeX stays text. */
export function showFormula(element: HTMLElement, display: boolean): void {
  const tex = element.textContent ?? "";
  element.classList.add("formula");
  if (display) element.classList.add("formula-display");
  if (tex.length > LONGEST_FORMULA) return;
  void import("./math").then(({ drawFormula }) => drawFormula(tex, element, display));
}
