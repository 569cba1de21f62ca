/**
 * The layout of a prefix tree. The length of a box is the number of its tokens, its height the number of paths through
 * it, so shared spans are large. Its children are to its right.
 */

import type { TreeNode } from "../api/live";

export interface Box {
  node: TreeNode;
  /** How many boxes precede it on its path. */
  depth: number;
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Layout {
  /** In reading order: a box before its children, from top to bottom. */
  boxes: Box[];
  height: number;
}

/** Even the shortest span has room for a slot's number, within a share of the width. */
const SHORTEST = 30;
const PART = 1 / 3;

interface Branch {
  node: TreeNode;
  below: Branch[];
  rows: number;
}

export function layOut(nodes: readonly TreeNode[], width: number, rowHeight: number): Layout {
  const roots = branches(nodes);
  const depth = Math.max(0, ...roots.map(depthOf));
  const shortest = Math.min(SHORTEST, (PART * width) / Math.max(1, depth));
  const scale = scaleFor(roots, width, shortest);
  const boxes: Box[] = [];

  function place({ node, below, rows }: Branch, x: number, row: number, depth: number): void {
    const length = Math.max(shortest, node.tokens * scale);
    boxes.push({ node, depth, x, y: row * rowHeight, width: length, height: rows * rowHeight });
    let next = row;
    for (const branch of below) {
      place(branch, x + length, next, depth + 1);
      next += branch.rows;
    }
  }

  let row = 0;
  for (const root of roots) {
    place(root, 0, row, 0);
    row += root.rows;
  }
  return { boxes, height: row * rowHeight };
}

/** Many paths are drawn thin, so that all are visible. */
export function rowHeightFor(paths: number): number {
  return paths <= 12 ? 26 : paths <= 40 ? 20 : 12;
}

export function pathsIn(nodes: readonly TreeNode[]): number {
  const parents = new Set(nodes.map(({ parent }) => parent));
  return nodes.filter(({ id }) => !parents.has(id)).length;
}

/** The target of an arrow key: along a path, or to the box above or below at the same depth. */
export function neighbour(boxes: readonly Box[], id: number, key: string): number | null {
  const box = boxes.find(({ node }) => node.id === id);
  if (!box) return null;
  const beside = boxes.filter(({ depth }) => depth === box.depth);
  const at = beside.indexOf(box);
  switch (key) {
    case "ArrowRight":
      return boxes.find(({ node }) => node.parent === id)?.node.id ?? null;
    case "ArrowLeft":
      return boxes.find(({ node }) => node.id === box.node.parent)?.node.id ?? null;
    case "ArrowUp":
      return beside[at - 1]?.node.id ?? null;
    case "ArrowDown":
      return beside[at + 1]?.node.id ?? null;
    case "Home":
      return boxes[0]?.node.id ?? null;
    case "End":
      return boxes.at(-1)?.node.id ?? null;
    default:
      return null;
  }
}

/** Ordered by id, which is the order of creation, so that boxes do not move when a span is used. */
function branches(nodes: readonly TreeNode[]): Branch[] {
  const known = new Map(nodes.map((node) => [node.id, { node, below: [], rows: 1 } as Branch]));
  const roots: Branch[] = [];
  for (const node of [...nodes].sort((left, right) => left.id - right.id)) {
    const branch = known.get(node.id);
    if (branch) ((node.parent === null ? undefined : known.get(node.parent))?.below ?? roots).push(branch);
  }
  roots.forEach(countRows);
  return roots;
}

function countRows(branch: Branch): number {
  branch.rows = Math.max(
    1,
    branch.below.reduce((rows, below) => rows + countRows(below), 0),
  );
  return branch.rows;
}

function depthOf({ below }: Branch): number {
  return 1 + Math.max(0, ...below.map(depthOf));
}

/** Pixels per token, such that the longest path just fits. */
function scaleFor(roots: readonly Branch[], width: number, shortest: number): number {
  const longest = ({ node, below }: Branch, scale: number): number =>
    Math.max(shortest, node.tokens * scale) + below.reduce((most, branch) => Math.max(most, longest(branch, scale)), 0);
  let [low, high] = [0, width];
  for (let halving = 0; halving < 30; halving++) {
    const middle = (low + high) / 2;
    if (roots.every((root) => longest(root, middle) <= width)) low = middle;
    else high = middle;
  }
  return low;
}
