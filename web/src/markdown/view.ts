/** Shows Markdown that may grow: finished blocks stay as they are, and only what is new or changed is made anew. */

import { type Block, blocksOf, type CodeBlock, definitionsIn, extended } from "./blocks";
import { codeFrame, growCode } from "./code";
import { decorate, showFormula } from "./decorate";
import { rendered } from "./html";

/** So long may a frame be held up; what is left is rendered in the next one. */
const PATIENCE_MS = 8;

interface Shown {
  block: Block;
  definitions: string;
  element: HTMLElement;
}

export class MarkdownView {
  private text = "";
  private blocks: Block[] = [];
  private shown: Shown[] = [];
  private pending: number | null = null;

  constructor(private readonly root: HTMLElement) {}

  show(text: string): void {
    this.blocks = text.startsWith(this.text) && this.text ? extended(this.blocks, text) : blocksOf(text);
    this.text = text;
    if (this.pending === null) this.render();
  }

  close(): void {
    if (this.pending !== null) clearTimeout(this.pending);
  }

  private render(): void {
    this.pending = null;
    const definitions = definitionsIn(this.text);
    const until = performance.now() + PATIENCE_MS;
    for (const [index, block] of this.blocks.entries()) {
      if (isShown(this.shown[index], block, definitions)) continue;
      this.replace(index, block, definitions);
      if (performance.now() > until && index + 1 < this.blocks.length) {
        // A timer rather than a frame: those do not come to a page in the background.
        this.pending = setTimeout(() => this.render()) as unknown as number;
        return;
      }
    }
    for (const { element } of this.shown.splice(this.blocks.length)) element.remove();
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
    if (before) before.element.replaceWith(element);
    else this.root.append(element);
    this.shown[index] = { ...next, element };
  }
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
    decorate(element);
  }
  return element;
}
