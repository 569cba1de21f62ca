import { useEffect, useRef } from "preact/hooks";
import { keep, key, refused } from "../api/key";
import { TEXT } from "../text";

/** Asks for the API key when the server requires one or refuses the current one. */
export function KeyDialog() {
  const dialog = useRef<HTMLDialogElement>(null);
  const reason = refused.value;
  const wrong = key.value !== null;
  useEffect(() => {
    if (reason === null) dialog.current?.close();
    else if (!dialog.current?.open) dialog.current?.showModal();
  }, [reason]);

  function submit(event: SubmitEvent) {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    keep(String(form.get("key")).trim(), form.get("remember") === "on");
  }

  return (
    <dialog ref={dialog} aria-labelledby="key-title" onCancel={() => (refused.value = null)}>
      {reason !== null && (
        <form onSubmit={submit}>
          <h2 id="key-title">{wrong ? TEXT.key.invalid : TEXT.key.required}</h2>
          <p class={wrong ? "problem" : "quiet"} role={wrong ? "alert" : undefined}>
            {wrong ? reason : TEXT.key.explanation}
          </p>
          <label>
            {TEXT.key.label}
            <input name="key" type="password" autocomplete="current-password" required />
          </label>
          <label class="check">
            <input name="remember" type="checkbox" /> {TEXT.key.remember}
          </label>
          <div class="actions">
            <button type="button" onClick={() => (refused.value = null)}>
              {TEXT.key.later}
            </button>
            <button type="submit" class="primary">
              {TEXT.key.save}
            </button>
          </div>
        </form>
      )}
    </dialog>
  );
}
