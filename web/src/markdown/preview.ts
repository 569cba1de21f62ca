/** What a model wrote, shown in a frame without an origin and without a network: HTML and SVG (preview.html), diagrams. */

import { TEXT } from "../text";

const DOCUMENTS = ["html", "htm", "xhtml", "svg"];

export function canPreview(language: string): boolean {
  return DOCUMENTS.includes(language.toLowerCase()) || isDiagram(language);
}

/** Diagrams are previewed once their source is complete. */
export function isDiagram(language: string): boolean {
  return language.toLowerCase() === "mermaid";
}

/** Show the preview of a block of code instead of its text, or its text again. `changed` learns which. */
export function togglePreview(
  block: HTMLElement,
  language: string,
  code: string,
  changed: (isShown: boolean) => void,
): void {
  block.querySelector(".problem")?.remove();
  const before = block.querySelector("iframe");
  const hide = (view: HTMLElement) => {
    view.remove();
    block.classList.remove("previewed");
    changed(false);
  };
  if (before) {
    hide(before);
    return;
  }
  const view = document.createElement("iframe");
  view.className = "preview";
  view.title = TEXT.markdown.previewTitle;
  // Without allow-same-origin: its scripts cannot reach the page, its storage or the key.
  view.setAttribute("sandbox", "allow-scripts");
  if (isDiagram(language)) {
    const fail = (reason: string) => {
      if (!view.isConnected) return;
      hide(view);
      block.querySelector(".code-head")?.after(problem(reason));
    };
    view.classList.add("diagram");
    import("./diagram").then(
      ({ drawDiagram }) => drawDiagram(view, code, fail),
      () => fail(TEXT.markdown.diagramNotLoaded),
    );
  } else {
    showDocument(view, code);
  }
  block.append(view);
  block.classList.add("previewed");
  changed(true);
}

function showDocument(view: HTMLIFrameElement, code: string): void {
  view.src = "./preview.html";
  addEventListener("message", function ready({ source }) {
    if (!view.isConnected) removeEventListener("message", ready);
    if (source === null || source !== view.contentWindow) return;
    removeEventListener("message", ready);
    view.contentWindow.postMessage(code, "*");
  });
}

function problem(reason: string): HTMLElement {
  const line = document.createElement("p");
  line.className = "problem";
  line.setAttribute("role", "alert");
  line.textContent = reason;
  return line;
}
