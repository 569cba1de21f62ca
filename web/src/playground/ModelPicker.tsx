import type { Signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { type ModelCard, models, modelsProblem } from "./models";

interface Props {
  chosen: Signal<string>;
  /** What the tab needs a model for; whoever else is chosen is told why it does not work. */
  kind?: "generation" | "embedding";
}

/** A choice among all models; the first that is fit is chosen until somebody chooses. */
export function ModelPicker({ chosen, kind }: Props) {
  const all = models.value ?? [];
  useEffect(() => {
    if (all.length > 0 && !all.some(({ id }) => id === chosen.value)) {
      chosen.value = (all.find((model) => fits(model, kind)) ?? all[0])?.id ?? "";
    }
  }, [all, chosen, kind]);
  const model = all.find(({ id }) => id === chosen.value);
  return (
    <div>
      <label>
        Model
        <select
          value={chosen.value}
          onChange={(event) => {
            chosen.value = event.currentTarget.value;
          }}
        >
          {all.map(({ id, kind: made }) => (
            <option key={id} value={id}>
              {made && made !== "generation" ? `${id} (${made})` : id}
            </option>
          ))}
        </select>
      </label>
      {modelsProblem.value !== null && <p class="problem small">{modelsProblem.value}</p>}
      {model && !fits(model, kind) && (
        <p class="unfit small" role="status">
          {whyNot(model, kind)}
        </p>
      )}
    </div>
  );
}

/** Whether the tab can do something with the model of that name. */
export function isFit(id: string, kind: "generation" | "embedding"): boolean {
  const model = models.value?.find((one) => one.id === id);
  return model !== undefined && fits(model, kind);
}

function fits({ kind: made }: ModelCard, kind: Props["kind"]): boolean {
  return kind === undefined || made === null || made === kind;
}

function whyNot({ id, kind: made }: ModelCard, kind: Props["kind"]): string {
  if (kind === "embedding") {
    const does = made === "generation" ? "generates text" : "ranks texts";
    return `${id} ${does} and makes no vectors. Choose a model that is made for it, or start the server with --embedding.`;
  }
  const does = made === "embedding" ? "makes vectors" : "ranks texts";
  return `${id} ${does} and generates no text. Choose another model.`;
}
