import type { LiveModel, Prefix } from "../api/live";
import { TEXT } from "../text";
import { depths } from "./pools";
import { prefixes } from "./stream";
import { count, counted, percent } from "./words";

const WORDS = TEXT.live.replicas;
/** Deeper parts are not indented further. */
const DEEPEST = 6;

/** Which replica has which prefix: a row for each part that the same prompts share, a column for each replica. */
export function PrefixPlaces({ model: { id, replicas } }: { model: LiveModel }) {
  const parts = prefixes.value.get(id)?.prefixes ?? [];
  const deep = depths(parts);
  return (
    <>
      <h4>{WORDS.prefixes}</h4>
      <p class="quiet small">{parts.length === 0 ? WORDS.noPrefixes : WORDS.note}</p>
      {parts.length > 0 && (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: it must scroll by the keyboard
        <section class="pool-table" aria-label={WORDS.prefixesOf(id)} tabIndex={0}>
          <table class="places">
            <thead>
              <tr>
                <th scope="col">{WORDS.prefix}</th>
                {replicas.map(({ name }) => (
                  <th key={name} scope="col">
                    {name}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {parts.map((part) => (
                <tr key={part.id}>
                  <th scope="row">
                    <Part part={part} depth={Math.min(deep.get(part.id) ?? 0, DEEPEST)} />
                  </th>
                  {replicas.map(({ name }) => (
                    <td key={name}>
                      <Share share={part.held[name] ?? 0} />
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      )}
    </>
  );
}

function Part({ part: { text, characters, prompts }, depth }: { part: Prefix; depth: number }) {
  return (
    <span class="part" style={{ marginLeft: `${depth * 14}px` }}>
      <span class={text ? "part-text" : "part-text quiet"}>
        {text === null ? TEXT.live.notShown : text.trim() || WORDS.unknownText}
      </span>
      <span class="quiet part-size">{WORDS.partOf(count(characters), counted(prompts, "prompt"))}</span>
    </span>
  );
}

function Share({ share }: { share: number }) {
  if (share === 0) return <span class="quiet">–</span>;
  return (
    <span class="held" style={{ "--share": percent(share) }}>
      {percent(share)}
    </span>
  );
}
