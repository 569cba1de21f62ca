import { useState } from "preact/hooks";
import type { Tree } from "../api/live";
import { TEXT } from "../text";
import { tierWords } from "./PrefixTree";
import { count } from "./words";

/** The tree as a table, for screen readers and for exact numbers. Rendered only while it is open. */
export function TreeTable({ tree }: { tree: Tree }) {
  const [open, setOpen] = useState(false);
  return (
    <details class="tree-table" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{TEXT.live.asTable}</summary>
      {open && (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: it must scroll by the keyboard
        <section class="table-scroll" aria-label={TEXT.live.spans} tabIndex={0}>
          <table>
            <caption class="hidden-visually">{TEXT.live.spansOf(tree.model)}</caption>
            <thead>
              <tr>
                {TEXT.live.columns.map((title) => (
                  <th key={title} scope="col">
                    {title}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {tree.nodes.map((node) => (
                <tr key={node.id}>
                  <th scope="row">{node.id}</th>
                  <td>{node.parent ?? "–"}</td>
                  <td>{count(node.start)}</td>
                  <td>{count(node.tokens)}</td>
                  <td>{tierWords(node)}</td>
                  <td>{count(node.hits)}</td>
                  <td>{node.slots.join(", ") || "–"}</td>
                  <td class="cell-text">{node.text ?? TEXT.live.notShown}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      )}
    </details>
  );
}
