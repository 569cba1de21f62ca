import "./tree.css";
import { signal } from "@preact/signals";
import type { Tree } from "../api/live";
import { href, route } from "../app/route";
import { TEXT } from "../text";
import { type Place, pathOf, placeIn } from "../timeline/place";
import { PrefixTree } from "./PrefixTree";
import { trees } from "./stream";
import { TreeTable } from "./TreeTable";
import { bytes, count, counted, percent } from "./words";

const subject = signal<string | null>(null);

/** The prefix tree of one model. */
export function PrefixTrees() {
  const models = [...trees.value.keys()].sort();
  const place = placeIn(route.value.id);
  const wanted = subject.value ?? place?.model ?? "";
  const tree = trees.value.get(wanted) ?? trees.value.get(models[0] ?? "");
  const isHere = place !== null && tree?.model === place.model;
  const marked = isHere ? pathOf(tree.nodes, place) : [];
  return (
    <section class="panel prefixes" aria-labelledby="prefixes-title">
      <div class="prefixes-head">
        <h2 id="prefixes-title">{TEXT.live.tree}</h2>
        {models.length > 1 && (
          <label>
            <span class="hidden-visually">{TEXT.live.modelOfTree}</span>
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
      {!tree && <p class="quiet">{TEXT.live.nothingCached}</p>}
      {tree && tree.nodes.length === 0 && <p class="quiet">{TEXT.live.cacheEmpty}</p>}
      {tree && tree.nodes.length > 0 && (
        <>
          {isHere && <Marked place={place} found={marked.length > 0} />}
          <PrefixTree tree={tree} marked={marked} />
          {tree.omitted > 0 && <p class="quiet small">{TEXT.live.notDrawn(tree.omitted)}</p>}
          <TreeTable tree={tree} />
        </>
      )}
    </section>
  );
}

/** The answer that a link from the chat is about. */
function Marked({ place, found }: { place: Place; found: boolean }) {
  return (
    <p class="tree-marked small" role="status">
      {found ? TEXT.timeline.shown(count(place.tokens)) : TEXT.timeline.gone}{" "}
      <a href={href("live")}>{TEXT.timeline.clear}</a>
    </p>
  );
}

/** How full the cache is, and its hit rate. */
function Tiers({ tree: { cells, stored, hits, misses, evictions } }: { tree: Tree }) {
  const asked = hits + misses;
  return (
    <dl class="tiers">
      <div class="hot">
        <dt>{TEXT.live.tiers.cells}</dt>
        <dd>
          {count(cells.used)} of {count(cells.total)}
        </dd>
      </div>
      <div class="stored">
        <dt>{TEXT.live.tiers.stored}</dt>
        <dd>
          {bytes(stored.used)} of {bytes(stored.limit)}
        </dd>
      </div>
      <div>
        <dt>{TEXT.live.tiers.hits}</dt>
        <dd>{asked > 0 ? `${percent(hits / asked)} of ${counted(asked, "prompt")}` : "–"}</dd>
      </div>
      <div>
        <dt>{TEXT.live.tiers.evicted}</dt>
        <dd>{count(evictions)}</dd>
      </div>
    </dl>
  );
}
