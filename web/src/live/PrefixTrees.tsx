import "./tree.css";
import { signal } from "@preact/signals";
import type { Tree } from "../api/live";
import { PrefixTree } from "./PrefixTree";
import { trees } from "./stream";
import { TreeTable } from "./TreeTable";
import { bytes, count, counted, percent } from "./words";

const subject = signal<string | null>(null);

/** The prefix tree of one model. */
export function PrefixTrees() {
  const models = [...trees.value.keys()].sort();
  const tree = trees.value.get(subject.value ?? "") ?? trees.value.get(models[0] ?? "");
  return (
    <section class="panel prefixes" aria-labelledby="prefixes-title">
      <div class="prefixes-head">
        <h2 id="prefixes-title">Prefix tree</h2>
        {models.length > 1 && (
          <label>
            <span class="hidden-visually">Model of the prefix tree</span>
            <select
              value={tree?.model ?? ""}
              onChange={(event) => {
                subject.value = event.currentTarget.value;
              }}
            >
              {models.map((model) => (
                <option key={model}>{model}</option>
              ))}
            </select>
          </label>
        )}
        {tree && <Tiers tree={tree} />}
      </div>
      {!tree && <p class="quiet">No loaded model has a cached prompt.</p>}
      {tree && tree.nodes.length === 0 && <p class="quiet">The cache is empty: the first prompt fills it.</p>}
      {tree && tree.nodes.length > 0 && (
        <>
          <PrefixTree tree={tree} />
          {tree.omitted > 0 && (
            <p class="quiet small">{counted(tree.omitted, "smaller span is", "smaller spans are")} not drawn.</p>
          )}
          <TreeTable tree={tree} />
        </>
      )}
    </section>
  );
}

/** How full the cache is, and its hit rate. */
function Tiers({ tree: { cells, stored, hits, misses, evictions } }: { tree: Tree }) {
  const asked = hits + misses;
  return (
    <dl class="tiers">
      <div class="hot">
        <dt>in cells</dt>
        <dd>
          {count(cells.used)} of {count(cells.total)}
        </dd>
      </div>
      <div class="stored">
        <dt>stored</dt>
        <dd>
          {bytes(stored.used)} of {bytes(stored.limit)}
        </dd>
      </div>
      <div>
        <dt>hits</dt>
        <dd>{asked > 0 ? `${percent(hits / asked)} of ${counted(asked, "prompt")}` : "–"}</dd>
      </div>
      <div>
        <dt>evicted</dt>
        <dd>{count(evictions)}</dd>
      </div>
    </dl>
  );
}
