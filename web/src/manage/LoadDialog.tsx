import { useEffect, useState } from "preact/hooks";
import { ApiError } from "../api/client";
import type { Model } from "../models/models";
import { TEXT } from "../text";
import { Dialog } from "../ui/Dialog";
import { inBytes, numberIn, taken } from "./amounts";
import { type Forecast, forecast, type LoadOptions, load } from "./api";

const PAUSE_MS = 250;
const CACHE_TYPES = ["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"];
const NUMBERS = [
  { option: "n_ctx", text: TEXT.manage.context },
  { option: "parallel", text: TEXT.manage.parallel },
  { option: "n_gpu_layers", text: TEXT.manage.gpuLayers },
] as const;

/** Chooses the options of a load, with the memory that it would take. */
export function LoadDialog({ model, onClose }: { model: Model; onClose: () => void }) {
  const [texts, setTexts] = useState<Record<string, string>>({});
  const [cacheType, setCacheType] = useState("");
  const [found, setFound] = useState<Forecast | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const options = optionsOf(texts, cacheType);

  const wanted = JSON.stringify(options);
  useEffect(() => {
    const timer = setTimeout(() => {
      if (options === null) return setProblem(TEXT.manage.wholeNumbers);
      forecast(model.id, options).then(
        (next) => {
          setFound(next);
          setProblem(next.problem);
        },
        (error) => setProblem(messageOf(error)),
      );
    }, PAUSE_MS);
    return () => clearTimeout(timer);
  }, [model.id, wanted]);

  async function submit(event: Event) {
    event.preventDefault();
    try {
      await load(model.id, options ?? {});
      onClose();
    } catch (error) {
      setProblem(messageOf(error));
    }
  }

  return (
    <Dialog title={TEXT.manage.loadWith(model.id)} onClose={onClose}>
      <form class="manage-options" onSubmit={(event) => void submit(event)}>
        {NUMBERS.map(({ option, text }) => (
          <label key={option}>
            {text}
            <input
              inputMode="numeric"
              value={texts[option] ?? ""}
              placeholder={TEXT.manage.asConfigured}
              onInput={(event) => setTexts({ ...texts, [option]: event.currentTarget.value })}
            />
          </label>
        ))}
        <label>
          {TEXT.manage.cacheType}
          <select value={cacheType} onChange={(event) => setCacheType(event.currentTarget.value)}>
            <option value="">{TEXT.manage.asConfigured}</option>
            {CACHE_TYPES.map((type) => (
              <option key={type}>{type}</option>
            ))}
          </select>
        </label>
        <div class="manage-forecast" role="status">
          {found && options !== null && <Needs found={found} />}
          {problem && <p class="problem">{problem}</p>}
        </div>
        <p class="small quiet">{TEXT.manage.untilReload}</p>
        <button type="submit" class="primary" disabled={options === null}>
          {TEXT.models.load}
        </button>
      </form>
    </Dialog>
  );
}

function Needs({ found }: { found: Forecast }) {
  const { host, gpu } = taken(found);
  return (
    <dl>
      <dt>{TEXT.manage.memory}</dt>
      <dd>{TEXT.manage.needs(inBytes(host), found.limit.host === undefined ? null : inBytes(found.limit.host))}</dd>
      {gpu > 0 && (
        <>
          <dt>{TEXT.manage.gpuMemory}</dt>
          <dd>{TEXT.manage.needs(inBytes(gpu), found.limit.gpu === undefined ? null : inBytes(found.limit.gpu))}</dd>
        </>
      )}
      <dt>{TEXT.manage.ofWhich}</dt>
      <dd>
        {TEXT.manage.parts(
          inBytes(found.host.weights + found.gpu.weights),
          inBytes(found.host.cache + found.gpu.cache),
          inBytes(found.host.compute + found.gpu.compute),
        )}
      </dd>
    </dl>
  );
}

/** Null if a field has a mistake. */
function optionsOf(texts: Record<string, string>, cacheType: string): LoadOptions | null {
  const options: LoadOptions = cacheType ? { cache_type_k: cacheType, cache_type_v: cacheType } : {};
  for (const { option } of NUMBERS) {
    const value = numberIn(texts[option] ?? "");
    if (value === null) return null;
    if (value !== undefined) options[option] = value;
  }
  return options;
}

function messageOf(error: unknown): string {
  if (error instanceof ApiError) return error.message;
  throw error;
}
