import { Fragment } from "preact";
import { useRef, useState } from "preact/hooks";
import { TEXT } from "../text";
import type { JudgedToken } from "./completion";
import { shown } from "./pieces";

/** An answer token by token. Likely tokens are paler. The selected token shows its alternatives. */
export function JudgedText({ tokens }: { tokens: readonly JudgedToken[] }) {
  const text = useRef<HTMLDivElement>(null);
  const [chosen, setChosen] = useState(0);
  const at = Math.min(chosen, tokens.length - 1);
  const token = tokens[at];

  function onKeyDown(event: KeyboardEvent) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(tokens.length - 1, at + step));
    setChosen(next);
    text.current?.querySelectorAll("button")[next]?.focus();
  }

  return (
    <div class="judged">
      <div
        ref={text}
        class="token-text"
        role="toolbar"
        aria-label={TEXT.playground.answerTokens}
        tabIndex={-1}
        onKeyDown={onKeyDown}
      >
        {tokens.map((token, place) => (
          <Token key={place} token={token} chosen={place === at} onChoose={() => setChosen(place)} />
        ))}
      </div>
      {token && <Alternatives token={token} />}
    </div>
  );
}

function Token({ token, chosen, onChoose }: { token: JudgedToken; chosen: boolean; onChoose: () => void }) {
  const { kind, text, breaks } = shown(token.text);
  const doubt = token.logprob === null ? 0 : Math.round(45 * (1 - Math.exp(token.logprob)));
  return (
    <Fragment>
      <button
        type="button"
        class={`token ${kind}${chosen ? " chosen" : ""}`}
        style={{ background: `color-mix(in srgb, var(--hot) ${doubt}%, var(--raised))` }}
        tabIndex={chosen ? 0 : -1}
        aria-pressed={chosen}
        onPointerEnter={onChoose}
        onFocus={onChoose}
        onClick={onChoose}
      >
        {text}
      </button>
      {Array.from({ length: breaks }, (_, place) => (
        <br key={place} />
      ))}
    </Fragment>
  );
}

function Alternatives({ token }: { token: JudgedToken }) {
  return (
    <table class="alternatives">
      <caption>{TEXT.playground.alternatives(shown(token.text).text)}</caption>
      <tbody>
        {token.alternatives.map(([text, logprob]) => (
          <tr key={text} class={text === token.text ? "taken" : ""}>
            <th scope="row">
              <span class="literal">{shown(text).text}</span>
              {text === token.text && <span class="hidden-visually">{TEXT.playground.chosen}</span>}
            </th>
            <td class="share">
              <i style={{ width: `${100 * Math.exp(logprob)}%` }} />
            </td>
            <td>{(100 * Math.exp(logprob)).toFixed(1)}%</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
