/** HTML and SVG of a model, shown in a frame without an origin and without a network (preview.html). */

import { TEXT } from "../text";

const LANGUAGES = ["html", "htm", "xhtml", "svg"];

export function canPreview(language: string): boolean {
  return LANGUAGES.includes(language.toLowerCase());
}

/** Show the code as a document instead of its text, or its text again. True if the document is shown. */
export function togglePreview(frame: HTMLElement, code: string): boolean {
  const before = frame.querySelector("iframe");
  if (before) {
    before.remove();
    frame.classList.remove("previewed");
    return false;
  }
  const view = document.createElement("iframe");
  view.className = "preview";
  view.title = TEXT.markdown.previewTitle;
  // Without allow-same-origin: its scripts cannot reach the page, its storage or the key.
  view.setAttribute("sandbox", "allow-scripts");
  view.src = "./preview.html";
  addEventListener("message", function ready({ source }) {
    if (!view.isConnected) removeEventListener("message", ready);
    if (source === null || source !== view.contentWindow) return;
    removeEventListener("message", ready);
    view.contentWindow.postMessage(code, "*");
  });
  frame.append(view);
  frame.classList.add("previewed");
  return true;
}
