import { expect, test } from "vitest";
import type { TreeNode } from "../api/live";
import { aNode } from "./example";
import { type Box, layOut, neighbour, pathsIn } from "./treeLayout";

const WIDTH = 800;
const ROW = 20;

/** A system prompt that three conversations share, one of which has two branches, and a separate path. */
const NODES = [
  aNode(1, null, 600),
  aNode(2, 1, 40),
  aNode(3, 1, 3),
  aNode(4, 3, 100),
  aNode(5, 3, 1),
  aNode(6, null, 20),
];

function box(boxes: readonly Box[], id: number): Box {
  const found = boxes.find(({ node }) => node.id === id);
  if (!found) throw new Error(`no box ${id}`);
  return found;
}

/** As many spans as are drawn at most. The parent of each is an earlier one. */
function grown(count: number, seed: number): TreeNode[] {
  let random = seed;
  const next = (below: number) => {
    random = (random * 1103515245 + 12345) % 2 ** 31;
    return random % below;
  };
  return Array.from({ length: count }, (_, id) => aNode(id, id === 0 ? null : next(id), 1 + next(2000)));
}

test("the height of a span is the number of paths through it", () => {
  const { boxes, height } = layOut(NODES, WIDTH, ROW);
  expect(pathsIn(NODES)).toBe(4);
  expect(height).toBe(4 * ROW);
  expect(box(boxes, 1).height).toBe(3 * ROW);
  expect(box(boxes, 3).height).toBe(2 * ROW);
  expect(box(boxes, 6)).toMatchObject({ y: 3 * ROW, x: 0 });
});

test("the length of a span is its tokens, and the longest path fills the width", () => {
  const { boxes } = layOut(NODES, WIDTH, ROW);
  expect(box(boxes, 1).width / box(boxes, 4).width).toBeCloseTo(6);
  expect(box(boxes, 4).x + box(boxes, 4).width).toBeCloseTo(WIDTH);
  expect(box(boxes, 5).width).toBeGreaterThan(5);
});

test("any tree fits: children start at the end of their parent, nothing overlaps, and everything is visible", () => {
  for (const [count, seed] of [1, 2, 5, 30, 100, 400].flatMap((count) => [1, 2, 3].map((seed) => [count, seed]))) {
    const { boxes, height } = layOut(grown(count ?? 0, seed ?? 0), WIDTH, ROW);
    expect(boxes).toHaveLength(count ?? 0);
    for (const { node, x, y, width, height: high } of boxes) {
      expect(width).toBeGreaterThan(0);
      expect(x + width).toBeLessThanOrEqual(WIDTH + 1e-6);
      expect(y + high).toBeLessThanOrEqual(height);
      if (node.parent === null) continue;
      const parent = box(boxes, node.parent);
      expect(x).toBeCloseTo(parent.x + parent.width);
      expect(y).toBeGreaterThanOrEqual(parent.y);
      expect(y + high).toBeLessThanOrEqual(parent.y + parent.height);
    }
    for (const depth of new Set(boxes.map((one) => one.depth))) {
      const beside = boxes.filter((one) => one.depth === depth);
      beside.slice(1).forEach((one, place) => {
        const above = beside[place] as Box;
        expect(one.y).toBeGreaterThanOrEqual(above.y + above.height);
      });
    }
  }
});

test("a path with more spans than pixels is compressed", () => {
  const path = Array.from({ length: 400 }, (_, id) => aNode(id, id === 0 ? null : id - 1, 10));
  const { boxes } = layOut(path, WIDTH, ROW);
  expect((boxes.at(-1) as Box).x + (boxes.at(-1) as Box).width).toBeCloseTo(WIDTH);
});

test("an empty tree has no boxes, and a span without a known parent is a root", () => {
  expect(layOut([], WIDTH, ROW)).toEqual({ boxes: [], height: 0 });
  expect(layOut([aNode(7, 3, 10)], WIDTH, ROW).boxes).toHaveLength(1);
});

test("existing spans keep their places when one is added", () => {
  const before = layOut(NODES, WIDTH, ROW).boxes;
  const after = layOut([...NODES, aNode(7, null, 30)], WIDTH, ROW).boxes;
  expect(after.slice(0, before.length)).toEqual(before);
});

test("arrow keys move along a path and between paths", () => {
  const { boxes } = layOut(NODES, WIDTH, ROW);
  expect(neighbour(boxes, 1, "ArrowRight")).toBe(2);
  expect(neighbour(boxes, 2, "ArrowDown")).toBe(3);
  expect(neighbour(boxes, 3, "ArrowRight")).toBe(4);
  expect(neighbour(boxes, 5, "ArrowLeft")).toBe(3);
  expect(neighbour(boxes, 6, "ArrowUp")).toBe(1);
  expect(neighbour(boxes, 1, "ArrowLeft")).toBeNull();
  expect(neighbour(boxes, 3, "Home")).toBe(1);
  expect(neighbour(boxes, 3, "End")).toBe(6);
  expect(neighbour(boxes, 3, "x")).toBeNull();
});
