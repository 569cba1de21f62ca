/** A block of code: its language, buttons to copy, wrap and preview it, and highlighting once it no longer grows. */

import { TEXT } from "../text";
import { copyText } from "../ui/copy";
import type { CodeBlock } from "./blocks";
import { canPreview, isDiagram, togglePreview } from "./preview";

/** Lines are in parts of about this many characters, so that only the last part of a growing block is laid out again. */
const PART = 4_000;
/** Longer code is not highlighted, because that would block the page. */
const MOST_COLOURED = 20_000;
const REST_MS = 400;

const waiting = new WeakMap<HTMLElement, number>();

type Shown = Pick<CodeBlock, "language" | "code" | "closed">;

export function codeFrame({ language, code, closed }: Shown): HTMLElement {
  const frame = document.createElement("div");
  frame.className = "code";
  const head = document.createElement("div");
  head.className = "code-head";
  const name = document.createElement("span");
  name.textContent = language || TEXT.markdown.plain;
  name.className = "code-language";
  const copy = button(TEXT.app.copy, () => void copied(copy, frame));
  const wrap = button(TEXT.markdown.wrap, () => {
    const isOn = !frame.classList.contains("wrapped");
    wrapLines(frame, wrap, isOn);
    localStorage.setItem(WRAP, isOn ? "on" : "off"); // for later blocks
  });
  head.append(name);
  if (canPreview(language)) {
    const preview = button(TEXT.markdown.preview, () => {
      togglePreview(frame, language, codeIn(frame).textContent ?? "", (isShown) => {
        preview.textContent = isShown ? TEXT.markdown.source : TEXT.markdown.preview;
      });
    });
    preview.classList.add("code-preview");
    head.append(preview);
  }
  head.append(wrap, copy);
  wrapLines(frame, wrap, localStorage.getItem(WRAP) === "on");
  const pre = document.createElement("pre");
  pre.tabIndex = 0;
  pre.setAttribute("role", "region");
  pre.setAttribute("aria-label", TEXT.markdown.code(language));
  pre.append(document.createElement("code"));
  frame.append(head, pre);
  growCode(frame, { language, code, closed });
  return frame;
}

const WRAP = "paddock.wrap";

function wrapLines(frame: HTMLElement, button: HTMLElement, isOn: boolean): void {
  frame.classList.toggle("wrapped", isOn);
  button.setAttribute("aria-pressed", String(isOn));
}

function button(text: string, act: () => void): HTMLButtonElement {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "plain small";
  made.textContent = text;
  made.addEventListener("click", act);
  return made;
}

/** Show more code in a frame that has its beginning. */
export function growCode(frame: HTMLElement, { language, code, closed }: Shown): void {
  const preview = frame.querySelector<HTMLElement>(".code-preview");
  if (preview && isDiagram(language)) preview.hidden = !closed && !frame.classList.contains("previewed");
  const element = codeIn(frame);
  const shown = element.textContent ?? "";
  if (element.dataset.coloured) {
    delete element.dataset.coloured;
    element.replaceChildren();
    append(element, code);
  } else {
    append(element, code.slice(shown.length));
  }
  clearTimeout(waiting.get(frame));
  if (language && code.length <= MOST_COLOURED) {
    waiting.set(frame, setTimeout(() => void colour(element, language), REST_MS) as unknown as number);
  }
}

function append(element: HTMLElement, text: string): void {
  for (let rest = text; rest; ) {
    let part = element.lastElementChild;
    const length = part?.textContent?.length ?? 0;
    const full = length >= PART && part?.textContent?.endsWith("\n");
    if (!part || full) {
      part = element.appendChild(document.createElement("span"));
      part.className = "part";
    }
    const room = full ? PART : Math.max(PART - length, 1);
    const end = rest.length <= room ? rest.length : rest.indexOf("\n", room) + 1 || rest.length;
    const node = part.lastChild ?? part.appendChild(new Text());
    (node as Text).appendData(rest.slice(0, end));
    rest = rest.slice(end);
  }
}

async function colour(element: HTMLElement, language: string): Promise<void> {
  const { coloured } = await import("./highlight");
  const code = element.textContent ?? "";
  const html = coloured(code, language);
  if (html === null || element.textContent !== code) return;
  element.innerHTML = html;
  element.dataset.coloured = "yes";
}

async function copied(button: HTMLElement, frame: HTMLElement): Promise<void> {
  button.textContent = (await copyText(codeIn(frame).textContent ?? "")) ? TEXT.app.copied : TEXT.markdown.notCopied;
  setTimeout(() => (button.textContent = TEXT.app.copy), 1500);
}

function codeIn(frame: HTMLElement): HTMLElement {
  return frame.querySelector("code") as HTMLElement;
}
