import "./timeline.css";
import type { CacheReport } from "../api/live";
import { href } from "../app/route";
import { seconds } from "../chat/statistics";
import type { AnswerMessage } from "../chat/tree";
import { placeOf, REASONS } from "../live/reportWords";
import { percent } from "../live/words";
import { TEXT } from "../text";
import { Dialog } from "../ui/Dialog";
import { type Part, sources, timeline, verdict } from "./parts";
import { placeId } from "./place";

/** Why an answer took as long as it did. */
export function TimelineDialog({
  answer,
  question,
  onClose,
}: {
  answer: AnswerMessage;
  /** The words of the user that it answers. */
  question: string;
  onClose: () => void;
}) {
  const { statistics, model } = answer;
  const parts = statistics?.parts ? timeline(statistics.parts, statistics.waited ?? null) : [];
  const report = statistics?.report ?? null;
  const total = parts.reduce((sum, { ms }) => sum + ms, 0);
  return (
    <Dialog title={TEXT.timeline.title} onClose={onClose} wide>
      {parts.length === 0 ? (
        <p class="quiet">{TEXT.timeline.unknown}</p>
      ) : (
        <>
          <p class="timeline-verdict">
            <strong>{seconds(total / 1000)}</strong> {verdict(parts)}
          </p>
          <Bar parts={parts} />
          <Table parts={parts} />
        </>
      )}
      {statistics && <Prompt report={report} tokens={statistics.promptTokens} cached={statistics.cachedTokens} />}
      {statistics && model !== null && (
        <p>
          <a
            href={href(
              "live",
              placeId({
                model,
                tokens: statistics.promptTokens + statistics.answerTokens,
                words: question.trim().slice(0, 24),
              }),
            )}
          >
            {TEXT.timeline.inTree}
          </a>
        </p>
      )}
    </Dialog>
  );
}

/** For the eye only: the table below has the same numbers. */
function Bar({ parts }: { parts: readonly Part[] }) {
  return (
    <div class="timeline-bar" aria-hidden="true">
      {parts.map(({ name, ms }) => (
        <i key={name} class={`part-${name}`} style={{ flexGrow: ms }} title={TEXT.timeline.parts[name][0]} />
      ))}
    </div>
  );
}

function Table({ parts }: { parts: readonly Part[] }) {
  return (
    <table class="timeline-parts">
      <tbody>
        {parts.map(({ name, ms, share }) => (
          <tr key={name}>
            <th scope="row">
              <i class={`swatch part-${name}`} aria-hidden="true" />
              {TEXT.timeline.parts[name][0]}
              <span class="small quiet">{TEXT.timeline.parts[name][1]}</span>
            </th>
            <td>{seconds(ms / 1000)}</td>
            <td class="quiet">{share < 0.01 ? "<1%" : percent(share)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** Where the tokens of the prompt came from, and why not more were cached. */
function Prompt({ report, tokens, cached }: { report: CacheReport | null; tokens: number; cached: number }) {
  const found = report
    ? sources(report.reused, report.computed)
    : sources({ cells: cached, host: 0, disk: 0 }, tokens - cached);
  return (
    <section class="timeline-prompt" aria-label={TEXT.timeline.prompt(tokens)}>
      <h3>{TEXT.timeline.prompt(tokens)}</h3>
      <div class="timeline-bar" aria-hidden="true">
        {found.map(({ name, tokens: count }) => (
          <i key={name} class={`tokens-${name}`} style={{ flexGrow: count }} />
        ))}
      </div>
      <ul class="timeline-sources">
        {found.map(({ name, tokens: count }) => (
          <li key={name}>
            <i class={`swatch tokens-${name}`} aria-hidden="true" />
            {TEXT.timeline.sources[name](count.toLocaleString("en"))}
          </li>
        ))}
      </ul>
      {report && (
        <p class="timeline-reason">
          {REASONS[report.reason]}
          {report.parted && (
            <>
              {" "}
              {placeOf(report.parted)}: <code>{report.parted.text}</code>
              {report.parted.known !== null && (
                <>
                  {" "}
                  {TEXT.live.against} <code>{report.parted.known}</code>
                </>
              )}
            </>
          )}
        </p>
      )}
    </section>
  );
}
