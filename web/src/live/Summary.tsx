import "./summary.css";
import { TEXT } from "../text";
import { paces } from "./history";
import { type Connection, connection, history, state } from "./stream";
import { verdict } from "./verdict";

/** The verdict and its age. */
export function Summary() {
  const now = state.value;
  const judged = now && verdict(now, paces(history.value));
  const note = noteOf(connection.value);
  return (
    <header class="summary">
      <h1 class={`verdict ${judged?.tone ?? "calm"}`}>{judged?.text ?? TEXT.live.question}</h1>
      <p class={`connection ${connection.value.kind}`} role="status">
        <span class="connection-dot" aria-hidden="true" />
        {note}
      </p>
    </header>
  );
}

function noteOf(connection: Connection): string {
  switch (connection.kind) {
    case "connecting":
      return TEXT.live.connection.connecting;
    case "open":
      return TEXT.live.connection.open;
    case "paused":
      return TEXT.live.connection.paused;
    case "lost":
      return TEXT.live.connection.lost(connection.reason);
    case "refused":
      return TEXT.live.connection.refused(connection.reason);
  }
}
