import { useEffect, useRef } from "preact/hooks";
import { refused } from "../api/key";
import { chooseModel, model as chosen } from "../chat/session";
import { Icon } from "../ui/Icon";
import "./models.css";
import { TEXT } from "../text";
import { inWords, type Model, parametersInWords } from "./models";
import { askFor, connection, forbidden, talkers } from "./watching";

const ID = "models";

export function toggleModels(): void {
  document.getElementById(ID)?.togglePopover();
}

/** Selects the model, and shows the state of each with buttons to load and unload it. */
export function ModelPicker() {
  const popover = useRef<HTMLDivElement>(null);
  const current = chosen.value;
  useEffect(() => {
    const element = popover.current;
    function toggled(event: Event) {
      if ((event as ToggleEvent).newState === "open")
        element?.querySelector<HTMLElement>("[aria-pressed=true]")?.focus();
    }
    element?.addEventListener("toggle", toggled);
    return () => element?.removeEventListener("toggle", toggled);
  }, []);
  return (
    <>
      <button type="button" class="model-button" popovertarget={ID} aria-haspopup="dialog" title={TEXT.models.choose}>
        <State model={current} />
        <span class="model-name">
          {current?.id ?? (connection.value.state === "connecting" ? TEXT.models.connecting : TEXT.models.none)}
        </span>
        <span class="hidden-visually">
          , {current ? inWords(current) : ""}. {TEXT.models.choose}
        </span>
        <Icon name="open" />
      </button>
      <div id={ID} ref={popover} popover="auto" class="models" role="dialog" aria-label={TEXT.models.label}>
        <ul>
          {talkers.value.map((model) => (
            <Row key={model.id} model={model} chosen={model.id === current?.id} />
          ))}
        </ul>
        {talkers.value.length === 0 && <p class="quiet">{connection.value.problem ?? TEXT.models.noChatModel}</p>}
        {connection.value.state === "no key" && (
          <button type="button" onClick={() => (refused.value = connection.value.problem)}>
            {TEXT.key.enter}
          </button>
        )}
        {forbidden.value && (
          <p class="small quiet" role="status">
            {forbidden.value}
          </p>
        )}
      </div>
    </>
  );
}

function Row({ model, chosen }: { model: Model; chosen: boolean }) {
  const { id, state, reason } = model;
  return (
    <li class="model">
      <button
        type="button"
        class="plain model-choice"
        aria-pressed={chosen}
        disabled={model.broken}
        onClick={() => {
          chooseModel(id);
          document.getElementById(ID)?.hidePopover();
          document.getElementById("composer")?.focus();
        }}
      >
        <State model={model} />
        <span>
          <span class="model-name">{id}</span>
          <span class="small quiet model-facts">{[inWords(model), ...facts(model)].join(" · ")}</span>
          {reason && <span class="small problem model-facts">{reason}</span>}
        </span>
      </button>
      {forbidden.value === null && <Action model={model} />}
      {state === "loading" && (
        <progress class="model-progress" value={model.progress ?? 0} aria-label={TEXT.models.loadingOne(id)} />
      )}
    </li>
  );
}

function Action({ model }: { model: Model }) {
  const { id, state } = model;
  if (state === "loaded") {
    return (
      <button
        type="button"
        class="small"
        aria-label={TEXT.models.unloadOne(id)}
        onClick={() => void askFor("unload", model)}
      >
        {TEXT.models.unload}
      </button>
    );
  }
  return (
    <button
      type="button"
      class="small"
      aria-label={TEXT.models.loadOne(id)}
      disabled={state === "loading" || state === "unloading"}
      onClick={() => void askFor("load", model)}
    >
      {state === "failed" ? TEXT.models.retry : TEXT.models.load}
    </button>
  );
}

function State({ model }: { model: Model | null }) {
  return <span class={`state state-${model?.state ?? "unloaded"}`} aria-hidden="true" />;
}

function facts({ parameters, quantization, size, context }: Model): string[] {
  return [
    parameters ? parametersInWords(parameters) : null,
    quantization,
    size ? (size >= 1e9 ? `${(size / 1e9).toFixed(1)} GB` : `${Math.round(size / 1e6)} MB`) : null,
    context ? TEXT.models.context(context.toLocaleString("en")) : null,
  ].filter((fact) => fact !== null);
}
