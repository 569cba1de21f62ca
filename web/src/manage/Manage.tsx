import { useEffect, useState } from "preact/hooks";
import { ApiError } from "../api/client";
import { inWords, type Model } from "../models/models";
import { askFor, models } from "../models/watching";
import { TEXT } from "../text";
import { Dialog } from "../ui/Dialog";
import { notify } from "../ui/notices";
import { inBytes } from "./amounts";
import { cancelDownload, type Download, deleteModel, downloads, startDownload } from "./api";
import { HubSearch } from "./HubSearch";
import { LoadDialog } from "./LoadDialog";
import "./manage.css";

const PERIOD_MS = 1_000;

/** The models of the server, for its operator: load with options, delete, and download from the hub. */
export function Manage() {
  const [folder, setFolder] = useState<string | null>(null);
  const [list, setList] = useState<Download[]>([]);
  const [problem, setProblem] = useState<string | null>(null);
  const [loading, setLoading] = useState<Model | null>(null);
  const [deleting, setDeleting] = useState<Model | null>(null);

  async function refresh() {
    try {
      const found = await downloads();
      setFolder(found.folder);
      setList(found.downloads);
      setProblem(null);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      setProblem(error.status === 403 ? TEXT.manage.adminOnly : error.message);
    }
  }

  useEffect(() => {
    void refresh();
    const timer = setInterval(() => {
      if (!document.hidden) void refresh();
    }, PERIOD_MS);
    return () => clearInterval(timer);
  }, []);

  async function tried(action: Promise<void>) {
    try {
      await action;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      notify(error.message);
    }
    await refresh();
  }

  return (
    <div class="manage">
      <h1>{TEXT.manage.heading}</h1>
      {problem && <p class="problem">{problem}</p>}
      <section class="manage-panel" aria-labelledby="served-heading">
        <h2 id="served-heading">{TEXT.manage.served}</h2>
        <ul class="manage-list">
          {models.value.map((model) => (
            <li key={model.id} class="manage-row">
              <span class="manage-name">
                {model.id}{" "}
                <span class="small quiet">
                  {[inWords(model), model.quantization, model.size ? inBytes(model.size) : null]
                    .filter(Boolean)
                    .join(" · ")}
                </span>
                {model.reason && <span class="small problem">{model.reason}</span>}
              </span>
              {problem === null && (
                <span class="manage-actions">
                  {!model.broken && (
                    <button
                      type="button"
                      class="small"
                      aria-label={TEXT.manage.loadOne(model.id)}
                      onClick={() => setLoading(model)}
                    >
                      {TEXT.manage.loadButton}
                    </button>
                  )}
                  {model.state === "loaded" && (
                    <button
                      type="button"
                      class="small"
                      aria-label={TEXT.models.unloadOne(model.id)}
                      onClick={() => void askFor("unload", model)}
                    >
                      {TEXT.models.unload}
                    </button>
                  )}
                  {model.removable && (
                    <button
                      type="button"
                      class="small"
                      aria-label={TEXT.manage.deleteOne(model.id)}
                      onClick={() => setDeleting(model)}
                    >
                      {TEXT.manage.delete}
                    </button>
                  )}
                </span>
              )}
            </li>
          ))}
        </ul>
      </section>
      {list.length > 0 && (
        <section class="manage-panel" aria-labelledby="downloads-heading">
          <h2 id="downloads-heading">{TEXT.manage.downloadsHeading}</h2>
          <ul class="manage-list">
            {list.map((one) => (
              <Progress key={one.name} download={one} onCancel={() => void tried(cancelDownload(one.name))} />
            ))}
          </ul>
        </section>
      )}
      {problem === null &&
        (folder === null ? (
          <p class="quiet">{TEXT.manage.noFolder}</p>
        ) : (
          <HubSearch onDownload={(name) => void tried(startDownload(name))} />
        ))}
      {loading && <LoadDialog model={loading} onClose={() => setLoading(null)} />}
      {deleting && (
        <Dialog title={TEXT.manage.deleteOne(deleting.id)} onClose={() => setDeleting(null)}>
          <p>{TEXT.manage.reallyDelete(deleting.size ? inBytes(deleting.size) : null)}</p>
          <button
            type="button"
            class="primary"
            onClick={() => {
              void tried(deleteModel(deleting.id));
              setDeleting(null);
            }}
          >
            {TEXT.manage.delete}
          </button>
        </Dialog>
      )}
    </div>
  );
}

function Progress({ download, onCancel }: { download: Download; onCancel: () => void }) {
  const { name, state, done, total, error } = download;
  return (
    <li class="manage-row">
      <span class="manage-name">
        {name}{" "}
        <span class="small quiet">
          {TEXT.manage.states[state]}
          {state === "running" && total > 0 && ` · ${TEXT.manage.ofBytes(inBytes(done), inBytes(total))}`}
        </span>
        {state === "failed" && <span class="small problem">{error}</span>}
        {state === "running" && <progress value={total > 0 ? done / total : 0} aria-label={name} />}
      </span>
      {state === "running" && (
        <button type="button" class="small" aria-label={TEXT.manage.cancelOne(name)} onClick={onCancel}>
          {TEXT.app.cancel}
        </button>
      )}
    </li>
  );
}
