import "./reports.css";
import type { CacheReport } from "../api/live";
import { TEXT } from "../text";
import { partsOf, placeOf, REASONS } from "./reportWords";
import { reports } from "./stream";
import { count } from "./words";

/** Why the last prompts were or were not cached, the newest first. */
export function Reports() {
  const models = [...reports.value.values()].filter((one) => one.reports.length > 0);
  return (
    <section class="panel reports" aria-labelledby="reports-title">
      <h2 id="reports-title">{TEXT.live.reports}</h2>
      {models.length === 0 && <p class="quiet">{TEXT.live.noReports}</p>}
      {models.map(({ model, reports }) => (
        <div key={model}>
          {models.length > 1 && <h3>{model}</h3>}
          <ul aria-label={TEXT.live.reportsOf(model)}>
            {[...reports].reverse().map(({ id, key, report }) => (
              <li key={id} class={`report ${report.reason}`}>
                <p class="report-head">
                  <Bar report={report} />
                  <b>{count(report.prompt_tokens - report.computed)}</b>
                  {TEXT.live.reused(count(report.prompt_tokens))}
                  {partsOf(report) !== "" && <span class="quiet"> ({partsOf(report)})</span>}
                  {key !== null && <span class="slot-key">{key}</span>}
                </p>
                <p class="report-reason">
                  {REASONS[report.reason]}
                  <Parted report={report} />
                </p>
              </li>
            ))}
          </ul>
        </div>
      ))}
    </section>
  );
}

function Bar({ report: { reused, computed } }: { report: CacheReport }) {
  return (
    <span class="slot-bar" aria-hidden="true">
      <i class="cached" style={{ flexGrow: reused.cells + reused.host + reused.disk }} />
      <i class="read" style={{ flexGrow: computed }} />
    </span>
  );
}

function Parted({ report: { parted } }: { report: CacheReport }) {
  if (!parted) return null;
  return (
    <>
      {" "}
      {placeOf(parted)}: <code>{parted.text}</code>
      {parted.known !== null && (
        <>
          {" "}
          {TEXT.live.against} <code>{parted.known}</code>
        </>
      )}
    </>
  );
}
