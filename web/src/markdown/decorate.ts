/** Later additions to rendered Markdown: frames around code inside lists and quotations, and formulas. */

import { codeFrame } from "./code";

const LONGEST_FORMULA = 4_000;

export function decorate(element: HTMLElement): void {
  for (const pre of element.querySelectorAll("pre")) {
    const language = /language-(\S+)/.exec(pre.firstElementChild?.className ?? "")?.[1] ?? "";
    pre.replaceWith(codeFrame({ language: language.toLowerCase(), code: (pre.textContent ?? "").replace(/\n$/, "") }));
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
