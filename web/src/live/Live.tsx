import "./live.css";
import { useEffect } from "preact/hooks";
import { Charts } from "./Charts";
import { Memory } from "./Memory";
import { Models } from "./Models";
import { PrefixTrees } from "./PrefixTrees";
import { Summary } from "./Summary";
import { connection, state, watch } from "./stream";

/** What the server is doing, and why it is fast or slow. Looking wakes no model and keeps none awake. */
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
        </>
      )}
    </div>
  );
}
