import { useEffect, useRef } from "preact/hooks";
import { keep, refused } from "../api/key";

/** Asks for the API key when the server wants one, or does not know the one it was given. */
export function KeyDialog() {
  const dialog = useRef<HTMLDialogElement>(null);
  const reason = refused.value;
  useEffect(() => {
    if (reason !== null) dialog.current?.showModal();
    else dialog.current?.close();
  }, [reason]);

  function submit(event: SubmitEvent) {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    keep(String(form.get("key")).trim(), form.get("remember") === "on");
    // What was refused is asked again by whoever reads the key's signal.
  }

  return (
    <dialog ref={dialog} aria-labelledby="key-title" onCancel={() => (refused.value = null)}>
      <form onSubmit={submit}>
        <h2 id="key-title">This server asks for a key</h2>
        <p class="problem">{reason}</p>
        <label>
          API key
          <input name="key" type="password" autocomplete="current-password" required />
        </label>
        <label class="check">
          <input name="remember" type="checkbox" /> Keep it in this browser, also for other tabs
        </label>
        <div class="actions">
          <button type="submit" class="primary">
            Use it
          </button>
        </div>
      </form>
    </dialog>
  );
}
