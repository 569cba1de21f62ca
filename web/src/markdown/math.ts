/** TeX → MathML. Loaded when the first formula is shown. */

import temml from "temml";
import "temml/dist/Temml-Local.css";

export function drawFormula(tex: string, element: HTMLElement, display: boolean): void {
  try {
    temml.render(tex, element, { displayMode: display, throwOnError: true, trust: false, maxSize: [20, 50] });
  } catch {
    element.textContent = tex;
    element.classList.add("formula-unread");
  }
}
