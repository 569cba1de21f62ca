import "./settings.css";
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { areSame, EFFORTS, type Field, MORE_NUMBERS, NOTHING_SET, NUMBERS, type NumberField } from "../chat/settings";
import { changeSettings, model, settings, settingsProblems, usualSettings } from "../chat/state";
import { makesTitles, switchTitles } from "../chat/titles";
import { TEXT } from "../text";
import { Dialog } from "../ui/Dialog";
import { factsOf, type ModelFacts, NO_FACTS } from "./facts";
import { keep, library, namesOf } from "./library";
import { Saved } from "./Saved";
import { ServerTools } from "./ServerTools";

const SCHEMA_EXAMPLE =
  '{\n  "type": "object",\n  "properties": { "name": { "type": "string" } },\n  "required": ["name"]\n}';
const TOOLS_EXAMPLE =
  '[{ "type": "function", "function": {\n  "name": "weather",\n  "parameters": { "type": "object", "properties": { "city": { "type": "string" } } }\n} }]';
const CUSTOM_EXAMPLE = '{ "typical_p": 0.9 }';
/** The server's value for a random seed. */
const RANDOM = 0xffffffff;

/** The settings of the open conversation, or of the one that begins next. */
export function SettingsDialog({ onClose }: { onClose: () => void }) {
  const facts = useSignal<ModelFacts>(NO_FACTS);
  const name = model.value?.id;
  useEffect(() => {
    if (name) factsOf(name).then((found) => (facts.value = found));
  }, [name]);
  const hasDefaults = name !== undefined && name in library.value.defaults;
  const isUsual = areSame(settings.value, usualSettings.value);

  function change(field: Field, value: string) {
    changeSettings({ ...settings.value, [field]: value });
  }

  return (
    <Dialog title={TEXT.settings.title} onClose={onClose} wide>
      <p class="small quiet">
        {hasDefaults ? TEXT.settings.explanationWithDefaults(name) : TEXT.settings.explanation}{" "}
        {name && (hasDefaults || !isUsual) && (
          <button
            type="button"
            class="plain small default"
            onClick={() => keep("defaults", name, hasDefaults && isUsual ? null : settings.value)}
          >
            {hasDefaults && isUsual ? TEXT.settings.clearDefault(name) : TEXT.settings.makeDefault(name)}
          </button>
        )}
      </p>
      <Saved
        texts={TEXT.settings.presets}
        names={namesOf("presets")}
        current={sameAs(library.value.presets, (preset) => areSame(preset, settings.value))}
        onChoose={(preset) => changeSettings(library.value.presets[preset] ?? NOTHING_SET)}
        onSave={(preset) => keep("presets", preset, settings.value)}
        onDelete={(preset) => keep("presets", preset, null)}
      />
      <TextField
        name="system"
        label={TEXT.settings.system}
        placeholder={TEXT.settings.systemExample}
        rows={3}
        onChange={change}
      />
      <Saved
        texts={TEXT.settings.prompts}
        names={namesOf("prompts")}
        current={sameAs(library.value.prompts, (prompt) => prompt === settings.value.system)}
        onChoose={(prompt) => change("system", library.value.prompts[prompt] ?? "")}
        onSave={(prompt) => keep("prompts", prompt, settings.value.system)}
        onDelete={(prompt) => keep("prompts", prompt, null)}
      />
      <Thinking {...facts.value.thinking} onChange={change} />
      <fieldset class="numbers">
        <legend>{TEXT.settings.sampling}</legend>
        {NUMBERS.map((field) => (
          <NumberInput key={field.name} field={field} usual={facts.value.params[field.name]} onChange={change} />
        ))}
      </fieldset>
      <details class="more" open={MORE_NUMBERS.some((field) => settings.peek()[field.name] !== "")}>
        <summary>{TEXT.settings.more}</summary>
        <div class="numbers">
          {MORE_NUMBERS.map((field) => (
            <NumberInput key={field.name} field={field} usual={facts.value.params[field.name]} onChange={change} />
          ))}
        </div>
      </details>
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
      <ServerTools onChange={(value) => change("server_tools", value)} />
      <TextField
        name="custom"
        label={TEXT.settings.custom}
        placeholder={CUSTOM_EXAMPLE}
        rows={2}
        code
        onChange={change}
      />
      <label class="check">
        <input
          type="checkbox"
          checked={makesTitles.value}
          onChange={({ currentTarget }) => switchTitles(currentTarget.checked)}
        />{" "}
        {TEXT.history.titles}
      </label>
      <div class="actions">
        <button type="button" onClick={() => changeSettings(isUsual ? NOTHING_SET : usualSettings.value)}>
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

/** The name of the entry that is the same as what is shown. */
function sameAs<T>(entries: Record<string, T>, isSame: (entry: T) => boolean): string | null {
  return Object.keys(entries).find((name) => isSame(entries[name] as T)) ?? null;
}

interface Changing {
  onChange: (name: Field, value: string) => void;
}

function Thinking({ can_switch, has_effort, onChange }: ModelFacts["thinking"] & Changing) {
  if (!can_switch && !has_effort) return null;
  const { thinking, effort } = settings.value;
  const efforts = TEXT.settings.efforts as Record<string, string>;
  return (
    <fieldset class="numbers">
      <legend>{TEXT.settings.thinkingTitle}</legend>
      {can_switch && (
        <label>
          {TEXT.settings.thinkingLabel}
          <select value={thinking} onChange={({ currentTarget }) => onChange("thinking", currentTarget.value)}>
            <option value="">{TEXT.settings.byModel}</option>
            <option value="on">{TEXT.settings.on}</option>
            <option value="off">{TEXT.settings.off}</option>
          </select>
        </label>
      )}
      {has_effort && (
        <label>
          {TEXT.settings.effortLabel}
          <select
            value={effort}
            disabled={thinking === "off"}
            onChange={({ currentTarget }) => onChange("effort", currentTarget.value)}
          >
            <option value="">{TEXT.settings.byModel}</option>
            {EFFORTS.map((name) => (
              <option key={name} value={name}>
                {efforts[name]}
              </option>
            ))}
          </select>
        </label>
      )}
    </fieldset>
  );
}

function NumberInput({
  field: { name, label, hint },
  usual,
  onChange,
}: { field: NumberField; usual: number | null | undefined } & Changing) {
  return (
    <label>
      {label}
      <input
        inputMode="decimal"
        autocomplete="off"
        value={settings.value[name]}
        placeholder={asPlaceholder(name, usual)}
        title={hint}
        aria-invalid={settingsProblems.value[name] !== undefined}
        aria-describedby={`${name}-hint`}
        onInput={({ currentTarget }) => onChange(name, currentTarget.value)}
      />
      <Hint name={name} hint={hint} />
    </label>
  );
}

function TextField({
  name,
  label,
  placeholder,
  rows,
  onChange,
  code = false,
}: { name: Field; label: string; placeholder: string; rows: number; code?: boolean } & Changing) {
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
  // As the server computes: 0.05000000074505806 is 0.05.
  return String(Number(value.toPrecision(6)));
}
