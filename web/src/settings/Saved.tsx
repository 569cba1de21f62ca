import { useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { TEXT } from "../text";
import { IconButton } from "../ui/Icon";

/** A list of saved entries: choose one, save the current one under a name, delete one. */
export function Saved({
  texts,
  names,
  current,
  onChoose,
  onSave,
  onDelete,
}: {
  texts: { label: string; save: string; name: string; none: string };
  names: string[];
  /** The entry that is the same as what is shown. */
  current: string | null;
  onChoose: (name: string) => void;
  onSave: (name: string) => void;
  onDelete: (name: string) => void;
}) {
  const naming = useSignal(false);
  const field = useRef<HTMLInputElement>(null);
  const name = useSignal("");
  function save() {
    const wanted = name.value.trim();
    if (wanted) onSave(wanted);
    naming.value = false;
  }
  if (naming.value) {
    return (
      <div class="saved">
        <input
          ref={field}
          aria-label={texts.name}
          placeholder={texts.name}
          maxLength={60}
          value={name.value}
          onInput={({ currentTarget }) => (name.value = currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter" && event.key !== "Escape") return;
            event.preventDefault();
            if (event.key === "Enter") save();
            else naming.value = false;
          }}
        />
        <button type="button" onClick={save} disabled={name.value.trim() === ""}>
          {names.includes(name.value.trim()) ? TEXT.settings.replace : TEXT.settings.save}
        </button>
        <button type="button" class="plain" onClick={() => (naming.value = false)}>
          {TEXT.app.cancel}
        </button>
      </div>
    );
  }
  return (
    <div class="saved">
      <select
        aria-label={texts.label}
        value={current ?? ""}
        disabled={names.length === 0}
        onChange={({ currentTarget }) => currentTarget.value && onChoose(currentTarget.value)}
      >
        <option value="">{names.length > 0 ? texts.label : texts.none}</option>
        {names.map((each) => (
          <option key={each} value={each}>
            {each}
          </option>
        ))}
      </select>
      <button
        type="button"
        onClick={() => {
          name.value = current ?? "";
          naming.value = true;
          requestAnimationFrame(() => field.current?.focus());
        }}
      >
        {texts.save}
      </button>
      {current !== null && (
        <IconButton icon="bin" label={TEXT.settings.deleteSaved(current)} onClick={() => onDelete(current)} />
      )}
    </div>
  );
}
