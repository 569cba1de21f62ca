import { useEffect, useRef } from "preact/hooks";
import { TEXT } from "../text";

/** The editor of a message. Reports the new text, or null if it is unchanged. */
export function Editor({
  text,
  action,
  onDone,
}: {
  text: string;
  action: string;
  onDone: (text: string | null) => void;
}) {
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    field.current?.focus();
    field.current?.setSelectionRange(text.length, text.length);
  }, []);
  function finish() {
    const changed = field.current?.value ?? "";
    onDone(changed.trim() === "" || changed === text ? null : changed);
  }
  return (
    <div class="editor">
      <textarea
        ref={field}
        aria-label={TEXT.composer.label}
        defaultValue={text}
        onKeyDown={(event) => {
          if (event.key === "Escape") {
            event.preventDefault();
            onDone(null);
          } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            finish();
          }
        }}
      />
      <div class="actions">
        <button type="button" onClick={() => onDone(null)}>
          {TEXT.app.cancel}
        </button>
        <button type="button" class="primary" onClick={finish}>
          {action}
        </button>
      </div>
    </div>
  );
}
