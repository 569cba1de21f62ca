import "./settings.css";
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { getJson } from "../api/client";
import { TEXT } from "../text";
import { Dialog } from "../ui/Dialog";
import { changeSettings, model, settings, settingsProblems } from "./session";
import { type Field, NOTHING_SET, NUMBERS } from "./settings";

interface Props {
  default_generation_settings: { params: Record<string, number | null> };
}

const SCHEMA_EXAMPLE =
  '{\n  "type": "object",\n  "properties": { "name": { "type": "string" } },\n  "required": ["name"]\n}';
const TOOLS_EXAMPLE =
  '[{ "type": "function", "function": {\n  "name": "weather",\n  "parameters": { "type": "object", "properties": { "city": { "type": "string" } } }\n} }]';
/** The server's value for a random seed. */
const RANDOM = 0xffffffff;

/** Settings for answers, in this conversation and in later ones. */
export function SettingsDialog({ onClose }: { onClose: () => void }) {
  const usual = useSignal<Record<string, number | null>>({});
  const name = model.value?.id;
  useEffect(() => {
    if (!name) return;
    getJson<Props>(`/props?model=${encodeURIComponent(name)}`).then(
      (props) => (usual.value = props.default_generation_settings.params),
      () => (usual.value = {}),
    );
  }, [name]);

  function change(field: Field, value: string) {
    changeSettings({ ...settings.value, [field]: value });
  }

  return (
    <Dialog title={TEXT.settings.title} onClose={onClose} wide>
      <p class="small quiet">{TEXT.settings.explanation}</p>
      <TextField
        name="system"
        label={TEXT.settings.system}
        placeholder={TEXT.settings.systemExample}
        rows={3}
        onChange={change}
      />
      <fieldset class="numbers">
        <legend>{TEXT.settings.sampling}</legend>
        {NUMBERS.map(({ name, label, hint }) => (
          <label key={name}>
            {label}
            <input
              inputMode="decimal"
              autocomplete="off"
              value={settings.value[name]}
              placeholder={asPlaceholder(name, usual.value[name])}
              title={hint}
              aria-invalid={settingsProblems.value[name] !== undefined}
              aria-describedby={`${name}-hint`}
              onInput={({ currentTarget }) => change(name, currentTarget.value)}
            />
            <Hint name={name} hint={hint} />
          </label>
        ))}
      </fieldset>
      <TextField name="stop" label={TEXT.settings.stop} placeholder="" rows={2} onChange={change} />
      <TextField
        name="schema"
        label={TEXT.settings.schema}
        placeholder={SCHEMA_EXAMPLE}
        rows={5}
        code
        onChange={change}
      />
      <TextField name="tools" label={TEXT.settings.tools} placeholder={TOOLS_EXAMPLE} rows={5} code onChange={change} />
      <div class="actions">
        <button type="button" onClick={() => changeSettings(NOTHING_SET)}>
          {TEXT.settings.reset}
        </button>
        <form method="dialog">
          <button type="submit" class="primary">
            {TEXT.settings.done}
          </button>
        </form>
      </div>
    </Dialog>
  );
}

function TextField({
  name,
  label,
  placeholder,
  rows,
  onChange,
  code = false,
}: {
  name: Field;
  label: string;
  placeholder: string;
  rows: number;
  onChange: (name: Field, value: string) => void;
  code?: boolean;
}) {
  return (
    <label>
      {label}
      <textarea
        class={code ? "mono" : undefined}
        rows={rows}
        spellcheck={!code}
        value={settings.value[name]}
        placeholder={placeholder}
        aria-invalid={settingsProblems.value[name] !== undefined}
        aria-describedby={`${name}-hint`}
        onInput={({ currentTarget }) => onChange(name, currentTarget.value)}
      />
      <Hint name={name} hint="" />
    </label>
  );
}

function Hint({ name, hint }: { name: Field; hint: string }) {
  const problem = settingsProblems.value[name];
  return (
    <span id={`${name}-hint`} class={problem ? "small problem" : "small quiet"} role={problem ? "alert" : undefined}>
      {problem ?? hint}
    </span>
  );
}

function asPlaceholder(name: Field, value: number | null | undefined): string {
  if (value === undefined || value === null) return "";
  if (name === "seed" && value === RANDOM) return TEXT.settings.random;
  if (name === "max_tokens" && value === -1) return TEXT.settings.unlimited;
  return String(value);
}
