import { href, route } from "../app/route";
import { Completion } from "./Completion";
import { Embeddings } from "./Embeddings";
import { Tokens } from "./Tokens";
import "./playground.css";

const TABS = [
  { id: "completion", name: "Completion", Panel: Completion },
  { id: "embeddings", name: "Embeddings", Panel: Embeddings },
  { id: "tokens", name: "Tokens", Panel: Tokens },
] as const;

/** Single requests to try. Each can be copied as a command. */
export function Playground() {
  const { id: chosen, name, Panel } = TABS.find(({ id }) => id === route.value.id) ?? TABS[0];
  return (
    <div class="playground">
      <h1 class="hidden-visually">Playground: {name}</h1>
      <nav class="tabs" aria-label="Playground">
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
