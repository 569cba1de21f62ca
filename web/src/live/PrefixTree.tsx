import { type Signal, useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Tree, TreeNode } from "../api/live";
import { TEXT } from "../text";
import { SlotChip, slotColour } from "./Slots";
import { type Box, layOut, neighbour, pathsIn, rowHeightFor } from "./treeLayout";
import { count, counted, listed } from "./words";

/** With more spans than this, changes are not animated, because that would be slow. */
const MOST_MOVED = 80;

/**
 * The tree from left to right: a box is as long as its span and as high as the paths that share it. The box
 * under the pointer, or the one selected by arrow keys, is described below.
 */
export function PrefixTree({ tree, marked = [] }: { tree: Tree; marked?: readonly number[] }) {
  const field = useRef<HTMLDivElement>(null);
  const width = useWidth(field);
  const pointed = useSignal<number | null>(null);
  const reached = useSignal<number | null>(null);
  const { boxes, height } = useMemo(
    () => layOut(tree.nodes, width, rowHeightFor(pathsIn(tree.nodes))),
    [tree.nodes, width],
  );
  // The Tab key reaches one box, and the arrow keys move from there.
  const entrance = boxes.find(({ node }) => node.id === reached.value) ?? boxes[0];

  function onKeyDown(event: KeyboardEvent) {
    const next = entrance && neighbour(boxes, entrance.node.id, event.key);
    if (next === null || next === undefined) return;
    event.preventDefault();
    field.current?.querySelector<HTMLElement>(`[data-node="${next}"]`)?.focus();
  }

  return (
    <>
      <div class="tree-scroll">
        <div
          ref={field}
          class={boxes.length > MOST_MOVED ? "tree" : "tree gentle"}
          role="tree"
          aria-label={TEXT.live.treeOf(tree.model)}
          tabIndex={-1}
          style={{ height: `${height}px` }}
          onKeyDown={onKeyDown}
          onFocusIn={(event) => {
            reached.value = nodeOf(event) ?? reached.value;
          }}
          onPointerOver={(event) => {
            pointed.value = nodeOf(event);
          }}
          onPointerLeave={() => {
            pointed.value = null;
          }}
        >
          {boxes.map((box) => (
            <Span key={box.node.id} box={box} tabbable={box === entrance} marked={marked.includes(box.node.id)} />
          ))}
        </div>
      </div>
      <Explanation nodes={tree.nodes} pointed={pointed} reached={reached} />
    </>
  );
}

/** The span of an event. */
function nodeOf({ target }: Event): number | null {
  const id = (target as HTMLElement).closest<HTMLElement>("[data-node]")?.dataset.node;
  return id === undefined ? null : Number(id);
}

/** Pixels of one line of text, of several, and of a slot's number. */
const READABLE = 18;
const TALL = 48;
const CHIP = 23;

function Span({
  box: { node, depth, x, y, width, height },
  tabbable,
  marked,
}: {
  box: Box;
  tabbable: boolean;
  marked: boolean;
}) {
  const room = width - CHIP * node.slots.length;
  const place = { left: `${x}px`, top: `${y}px`, width: `${width}px`, height: `${height}px` };
  return (
    <div
      class={["span", ...tiersOf(node), ...(marked ? ["marked"] : [])].join(" ")}
      role="treeitem"
      aria-level={depth + 1}
      aria-label={labelOf(node)}
      aria-current={marked ? "true" : undefined}
      data-node={node.id}
      tabIndex={tabbable ? 0 : -1}
      style={place}
    >
      {height >= READABLE && (
        <span class="span-head">
          {node.slots.map((slot) => (
            <SlotChip key={slot} id={slot} />
          ))}
          {room > 40 && <b>{count(node.tokens)}</b>}
          {room > 80 && node.hits > 0 && <span>×{count(node.hits)}</span>}
          {room > 120 && height < TALL && <span class="span-text">{node.text}</span>}
        </span>
      )}
      {width > 110 && height >= TALL && <span class="span-body">{node.text}</span>}
      {height < READABLE && node.slots[0] !== undefined && (
        <span class="span-mark" style={{ background: slotColour(node.slots[0]) }} />
      )}
    </div>
  );
}

interface Explained {
  nodes: readonly TreeNode[];
  pointed: Signal<number | null>;
  reached: Signal<number | null>;
}

/** The description of one span, or the legend. */
function Explanation({ nodes, pointed, reached }: Explained) {
  const node = nodes.find(({ id }) => id === (pointed.value ?? reached.value));
  if (!node) return <TreeKey />;
  return (
    <div class="explanation">
      <p>
        <strong>{counted(node.tokens, "token")}</strong>
        {TEXT.live.from(count(node.start))} · {tierWords(node)} · {counted(node.hits, "hit")} ·{" "}
        {node.slots.length === 0 ? (
          TEXT.live.unused
        ) : (
          <>
            {TEXT.live.usedBy}{" "}
            {node.slots.map((slot) => (
              <SlotChip key={slot} id={slot} />
            ))}
          </>
        )}
      </p>
      {node.text === null ? <p class="quiet">{TEXT.live.hidden}</p> : <p class="explanation-text">{node.text}</p>}
    </div>
  );
}

function TreeKey() {
  return (
    <p class="tree-key quiet small">
      <span class="span hot" aria-hidden="true" /> {TEXT.live.inCells} <span class="span stored" aria-hidden="true" />{" "}
      {TEXT.live.inHost} <span class="span hot stored" aria-hidden="true" /> both · <b>512</b> tokens, <b>×3</b> hits,
      and the slots that use them now · point at a span, or use the arrow keys
    </p>
  );
}

function tiersOf({ hot, stored }: TreeNode): string[] {
  return [...(hot ? ["hot"] : []), ...(stored ? ["stored"] : [])];
}

export function tierWords({ hot, stored }: TreeNode): string {
  if (hot) return stored ? TEXT.live.inBoth : TEXT.live.inCells;
  return stored ? TEXT.live.inHost : TEXT.live.inNone;
}

function labelOf(node: TreeNode): string {
  const users = node.slots.length > 0 ? `, used by ${listed(node.slots.map((slot) => `slot ${slot}`))}` : "";
  const text = node.text === null ? "" : `: ${node.text}`;
  return `${counted(node.tokens, "token")}, ${tierWords(node)}, ${counted(node.hits, "hit")}${users}${text}`;
}

function useWidth(of: { current: HTMLElement | null }): number {
  const [width, setWidth] = useState(600);
  useEffect(() => {
    const element = of.current;
    if (!element) return;
    const measure = () => setWidth(element.clientWidth);
    measure();
    const resized = new ResizeObserver(measure);
    resized.observe(element);
    return () => resized.disconnect();
  }, [of]);
  return width;
}
