import "./summary.css";
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
      <h1 class={`verdict ${judged?.tone ?? "calm"}`}>{judged?.text ?? "What is the server doing?"}</h1>
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
      return "Connecting";
    case "open":
      return "Live";
    case "paused":
      return "Paused while this tab is hidden";
    case "lost":
      return `Not live: ${connection.reason}. The data is old; reconnecting`;
    case "refused":
      return `Not available: ${connection.reason}`;
  }
}
