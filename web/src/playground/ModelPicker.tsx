import type { Signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { fits, type Model } from "../models/models";
import { connection, models } from "../models/watching";
import { TEXT } from "../text";

type Wanted = "generation" | "embedding" | "reranking";

interface Props {
  chosen: Signal<string>;
  /** The task of the tab. An unfit model shows why it does not work. */
  kind?: Wanted;
}

/** Selects one of all models. The first fit one is selected by default. */
export function ModelPicker({ chosen, kind }: Props) {
  const all = models.value;
  useEffect(() => {
    if (all.length > 0 && !all.some(({ id }) => id === chosen.value)) {
      const usable = all.filter(({ broken }) => !broken);
      chosen.value = (usable.find((model) => !kind || fits(model, kind)) ?? usable[0])?.id ?? "";
    }
  }, [all, chosen, kind]);
  const model = all.find(({ id }) => id === chosen.value);
  return (
    <div>
      <label>
        {TEXT.playground.model}
        <select
          value={chosen.value}
          onChange={(event) => {
            chosen.value = event.currentTarget.value;
          }}
        >
          {all.map(({ id, kind: made, broken }) => (
            <option key={id} value={id} disabled={broken}>
              {made && made !== "generation" ? `${id} (${made})` : id}
            </option>
          ))}
        </select>
      </label>
      {connection.value.problem !== null && <p class="problem small">{connection.value.problem}</p>}
      {model && kind && !fits(model, kind) && (
        <p class="unfit small" role="status">
          {whyNot(model, kind)}
        </p>
      )}
    </div>
  );
}

/** Whether the model of that name is fit for the tab. */
export function isFit(id: string, kind: Wanted): boolean {
  const model = models.value.find((one) => one.id === id);
  return model !== undefined && fits(model, kind);
}

function whyNot({ id, kind: made }: Model, kind: Wanted): string {
  if (kind === "reranking") {
    const does = made === "generation" ? TEXT.playground.generates : TEXT.playground.embeds;
    return TEXT.playground.noRanks(id, does);
  }
  if (kind === "embedding") {
    const does = made === "generation" ? TEXT.playground.generates : TEXT.playground.ranks;
    return TEXT.playground.noEmbeddings(id, does);
  }
  const does = made === "embedding" ? TEXT.playground.embeds : TEXT.playground.ranks;
  return TEXT.playground.noGeneration(id, does);
}
