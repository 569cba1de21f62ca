import type { Signal } from "@preact/signals";
import type { ComponentChildren } from "preact";

interface Field<T> {
  value: Signal<T>;
  /** Its label. */
  children: ComponentChildren;
}

/** A text of many lines in which every character matters. */
export function Literal({ rows, value, children }: Field<string> & { rows: number }) {
  return (
    <label>
      {children}
      <textarea
        rows={rows}
        class="literal"
        value={value.value}
        onInput={(event) => {
          value.value = event.currentTarget.value;
        }}
      />
    </label>
  );
}

export function Check({ value, children }: Field<boolean>) {
  return (
    <label class="check">
      <input
        type="checkbox"
        checked={value.value}
        onChange={(event) => {
          value.value = event.currentTarget.checked;
        }}
      />{" "}
      {children}
    </label>
  );
}

/** A form that is sent by its button, or by Ctrl+Enter from a text in which Enter alone makes a new line. */
export function sentBy(send: () => void) {
  function submit(event: Event) {
    event.preventDefault();
    send();
  }
  return {
    onSubmit: submit,
    onKeyDown(event: KeyboardEvent) {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
    },
  };
}
