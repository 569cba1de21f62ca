import { href, route } from "../app/route";
import { Completion } from "./Completion";
import { Embeddings } from "./Embeddings";
import { Rerank } from "./Rerank";
import { Tokens } from "./Tokens";
import "./playground.css";
import { TEXT } from "../text";

const TABS = [
  { id: "completion", name: TEXT.playground.tabs.completion, Panel: Completion },
  { id: "embeddings", name: TEXT.playground.tabs.embeddings, Panel: Embeddings },
  { id: "rerank", name: TEXT.playground.tabs.rerank, Panel: Rerank },
  { id: "tokens", name: TEXT.playground.tabs.tokens, Panel: Tokens },
] as const;

/** Single requests to try. Each can be copied as a command. */
export function Playground() {
  const { id: chosen, name, Panel } = TABS.find(({ id }) => id === route.value.id) ?? TABS[0];
  return (
    <div class="playground">
      <h1 class="hidden-visually">{TEXT.playground.heading(name)}</h1>
      <nav class="tabs" aria-label={TEXT.playground.label}>
        {TABS.map(({ id, name }) => (
          <a key={id} href={href("playground", id)} aria-current={id === chosen ? "page" : undefined}>
            {name}
          </a>
        ))}
      </nav>
      <Panel />
    </div>
  );
}
