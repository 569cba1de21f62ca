import "./replicas.css";
import type { LiveModel, Replica } from "../api/live";
import { TEXT } from "../text";
import { replicaRates } from "./history";
import { PrefixPlaces } from "./PrefixPlaces";
import { busyShare, cachedShare, pools } from "./pools";
import { history, state } from "./stream";
import { count, percent, rate } from "./words";

const WORDS = TEXT.live.replicas;
const NONE = "–";

/** The replicas of each model that has several or remote ones, and which prefixes they have. */
export function Replicas() {
  return (
    <section class="panel replicas" aria-labelledby="replicas-title">
      <h2 id="replicas-title">{WORDS.title}</h2>
      {pools(state.value?.models ?? []).map((model) => (
        <div key={model.id} class="pool">
          <h3>{model.id}</h3>
          <ReplicaTable model={model} />
          <PrefixPlaces model={model} />
        </div>
      ))}
    </section>
  );
}

function ReplicaTable({ model: { id, replicas } }: { model: LiveModel }) {
  const rates = replicaRates(history.value, id);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: it must scroll by the keyboard
    <section class="pool-table" aria-label={WORDS.of(id)} tabIndex={0}>
      <table>
        <thead>
          <tr>
            {WORDS.columns.map((title) => (
              <th key={title} scope="col">
                {title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {replicas.map((replica) => (
            <Row key={replica.name} replica={replica} tokens={rates.get(replica.name)} />
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Row({ replica, tokens }: { replica: Replica; tokens: number | undefined }) {
  const { name, kind, place, running, waiting, slots } = replica;
  const [busy, cached] = [busyShare(replica), cachedShare(replica)];
  return (
    <tr>
      <th scope="row">
        <b>{name}</b> <span class="quiet">{WORDS.kinds[kind]}</span>{" "}
        {place !== null && <span class="quiet replica-place">{place}</span>}
      </th>
      <td class="replica-state">
        <State replica={replica} />
      </td>
      <td class="replica-load">
        <span class="slot-bar" aria-hidden="true">
          <i class="answered" style={{ flexGrow: busy ?? 0 }} />
          <i style={{ flexGrow: 1 - (busy ?? 0) }} />
        </span>
        {busy === null ? count(running) : WORDS.slots(count(running), count(slots))}
      </td>
      <td>{count(waiting)}</td>
      <td>{tokens === undefined ? NONE : rate(tokens)}</td>
      <td>{cached === null ? NONE : percent(cached)}</td>
    </tr>
  );
}

const STYLES = { unloaded: "", loading: "loading", ready: "loaded", down: "failed" };

/** The state, and below it why. */
function State({ replica: { state, progress, reason, drained, excluded } }: { replica: Replica }) {
  return (
    <>
      <span class={`model-state ${STYLES[state]}`}>
        {state}
        {progress !== null && ` ${percent(progress)}`}
      </span>
      {drained && <span class="model-state">{WORDS.drained}</span>}
      {state === "down" && <span class="problem replica-reason">{reason ?? WORDS.silent}</span>}
      {excluded !== null && <span class="quiet replica-reason">{WORDS.excluded(excluded)}</span>}
    </>
  );
}
