import "./live.css";
import { useEffect } from "preact/hooks";
import { later } from "../ui/later";
import { Batches } from "./Batches";
import { Charts } from "./Charts";
import { Memory } from "./Memory";
import { Models } from "./Models";
import { PrefixTrees } from "./PrefixTrees";
import { pools } from "./pools";
import { Reports } from "./Reports";
import { Summary } from "./Summary";
import { connection, state, watch } from "./stream";

const Replicas = later(async () => (await import("./Replicas")).Replicas);

/** The live view: what the server does, and why it is fast or slow. It loads no model and resets no idle timer. */
export function Live() {
  useEffect(watch, []);
  return (
    <div class={connection.value.kind === "open" ? "live" : "live stale"}>
      <Summary />
      {state.value !== null && (
        <>
          <Memory />
          <Charts />
          <div class="live-below">
            <Models />
            <PrefixTrees />
          </div>
          {pools(state.value.models).length > 0 && <Replicas />}
          {state.value.has_batches && <Batches />}
          <Reports />
        </>
      )}
    </div>
  );
}
