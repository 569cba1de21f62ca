import { useState } from "preact/hooks";
import { ApiError } from "../api/client";
import { TEXT } from "../text";
import { inBytes } from "./amounts";
import { contents, type Repository, type RepositoryModel, search } from "./api";

/** Searches the hub for models to download. */
export function HubSearch({ onDownload }: { onDownload: (name: string) => void }) {
  const [text, setText] = useState("");
  const [found, setFound] = useState<Repository[] | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);

  async function submit(event: Event) {
    event.preventDefault();
    setBusy(true);
    try {
      setFound(await search(text));
      setProblem(null);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      setProblem(error.message);
    } finally {
      setBusy(false);
    }
  }

  return (
    <section class="manage-panel" aria-labelledby="hub-heading">
      <h2 id="hub-heading">{TEXT.manage.hub}</h2>
      <form class="manage-search" onSubmit={(event) => void submit(event)}>
        <input
          type="search"
          aria-label={TEXT.manage.searchLabel}
          placeholder={TEXT.manage.searchHint}
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
        <button type="submit" disabled={busy}>
          {TEXT.manage.search}
        </button>
      </form>
      <div role="status">
        {problem && <p class="problem">{problem}</p>}
        {found?.length === 0 && <p class="quiet">{TEXT.manage.noResults}</p>}
      </div>
      <ul class="manage-list">
        {found?.map((repository) => (
          <Found key={repository.name} repository={repository} onDownload={onDownload} />
        ))}
      </ul>
    </section>
  );
}

function Found({ repository, onDownload }: { repository: Repository; onDownload: (name: string) => void }) {
  const [models, setModels] = useState<RepositoryModel[] | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const { name, downloads, is_gated: isGated } = repository;

  async function show(event: Event) {
    if (!(event.currentTarget as HTMLDetailsElement).open || models !== null) return;
    try {
      setModels(await contents(name));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      setProblem(error.message);
    }
  }

  return (
    <li>
      <details onToggle={(event) => void show(event)}>
        <summary>
          {name}{" "}
          <span class="small quiet">
            {TEXT.manage.downloads(downloads.toLocaleString("en"))}
            {isGated && ` · ${TEXT.manage.gated}`}
          </span>
        </summary>
        {problem && <p class="problem">{problem}</p>}
        <ul>
          {models?.map((model) => (
            <li key={model.name} class="manage-row">
              <span>
                {model.quantisation}{" "}
                <span class="small quiet">
                  {inBytes(model.size)}
                  {model.fits === false && ` · ${TEXT.manage.tooLarge}`}
                </span>
              </span>
              <button
                type="button"
                class="small"
                aria-label={TEXT.manage.downloadOne(model.name)}
                onClick={() => onDownload(model.name)}
              >
                {TEXT.manage.download}
              </button>
            </li>
          ))}
        </ul>
      </details>
    </li>
  );
}
