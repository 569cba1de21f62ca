/** Shows Markdown that may grow: only new and changed blocks are rendered. */

import { type Block, blocksOf, type CodeBlock, continuesList, definitionsIn, extended } from "./blocks";
import { codeFrame, growCode } from "./code";
import { decorate, showFormula } from "./decorate";
import { rendered } from "./html";

/** How long rendering may block a frame. The rest follows later. */
const PATIENCE_MS = 8;
/** This many blocks form a group that is laid out and painted only if it is visible. */
const GROUP = 20;

interface Shown {
  block: Block;
  definitions: string;
  element: HTMLElement;
}

export class MarkdownView {
  private text = "";
  private blocks: Block[] = [];
  private shown: Shown[] = [];

  constructor(private readonly root: HTMLElement) {}

  show(text: string): void {
    const grows = this.text !== "" && text.startsWith(this.text);
    this.blocks = grows ? extended(this.blocks, text) : blocksOf(text);
    this.text = text;
    if (grows && this.render(performance.now() + PATIENCE_MS)) return;
    later(this);
  }

  close(): void {
    const place = waiting.indexOf(this);
    if (place >= 0) waiting.splice(place, 1);
  }

  /** Render what has changed. False if there was not enough time. */
  render(until: number): boolean {
    const definitions = definitionsIn(this.text);
    for (const [index, block] of this.blocks.entries()) {
      if (isShown(this.shown[index], block, definitions)) continue;
      if (performance.now() > until) return false;
      this.replace(index, block, definitions);
    }
    for (const { element } of this.shown.splice(this.blocks.length)) element.remove();
    return true;
  }

  private replace(index: number, block: Block, definitions: string): void {
    const before = this.shown[index];
    const next = { block, definitions: needs(block, definitions) };
    if (before?.block.kind === "code" && block.kind === "code" && grows(before.block, block)) {
      growCode(before.element, block);
      this.shown[index] = { ...next, element: before.element };
      return;
    }
    const element = made(block, next.definitions);
    if (continuesList(this.blocks[index - 1], block)) continueList(this.shown[index - 1]?.element, element);
    if (before) before.element.replaceWith(element);
    else this.group(index).append(element);
    this.shown[index] = { ...next, element };
  }

  private group(index: number): Element {
    const place = Math.floor(index / GROUP);
    while (this.root.children.length <= place) {
      this.root.lastElementChild?.classList.add("settled");
      this.root.append(document.createElement("div"));
    }
    return this.root.children[place] as Element;
  }
}

/** A long list is cut into several blocks, and its numbers go on. */
function continueList(before: HTMLElement | undefined, element: HTMLElement): void {
  element.classList.add("continued");
  const list = element.firstElementChild;
  const above = before?.lastElementChild;
  if (list instanceof HTMLOListElement && above instanceof HTMLOListElement) {
    list.start = above.start + above.querySelectorAll(":scope > li").length;
  }
}

/** Views with blocks left to render. The last one is lowest on the page, where the user looks, and goes first. */
const waiting: MarkdownView[] = [];
let working = false;

function later(view: MarkdownView): void {
  if (!waiting.includes(view)) waiting.push(view);
  if (working) return;
  working = true;
  // A timer instead of a frame, because a page in the background has no frames.
  setTimeout(work);
}

function work(): void {
  const until = performance.now() + PATIENCE_MS;
  for (let view = waiting.at(-1); view?.render(until); view = waiting.at(-1)) waiting.pop();
  working = waiting.length > 0;
  if (working) setTimeout(work);
}

function isShown(shown: Shown | undefined, block: Block, definitions: string): boolean {
  return shown?.block.source === block.source && shown.definitions === needs(block, definitions);
}

function needs(block: Block, definitions: string): string {
  return block.kind === "text" && block.source.includes("[") ? definitions : "";
}

function grows(before: CodeBlock, after: CodeBlock): boolean {
  return before.language === after.language && after.code.startsWith(before.code);
}

function made(block: Block, definitions: string): HTMLElement {
  if (block.kind === "code") return codeFrame(block);
  const element = document.createElement("div");
  element.className = "block";
  if (block.kind === "math") {
    element.textContent = block.tex;
    showFormula(element, true);
  } else {
    element.append(rendered(definitions ? `${block.source}\n\n${definitions}` : block.source));
    decorate(element, block.source);
  }
  return element;
}
