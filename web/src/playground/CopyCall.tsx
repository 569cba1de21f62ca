import { useRef, useState } from "preact/hooks";
import { key } from "../api/key";
import { type Call, curl, type Json, python } from "./commands";

/** Buttons that copy the request, as the form says it now, for a shell and for Python. */
export function CopyCall({ path, body }: { path: string; body: Readonly<Record<string, Json>> }) {
  const [said, setSaid] = useState("");
  const [byHand, setByHand] = useState("");
  const dialog = useRef<HTMLDialogElement>(null);
  // As requests are: relative to the page, wherever a proxy serves it.
  const call: Call = { url: new URL(`.${path}`, document.baseURI).href, body, keyed: key.value !== null };

  async function copy(text: string, what: string) {
    try {
      await navigator.clipboard.writeText(text);
      setSaid(`Copied as ${what}`);
    } catch {
      // Without HTTPS, from another machine, browsers have no clipboard to write to.
      setByHand(text);
      dialog.current?.showModal();
    }
  }

  return (
    <span class="copy-call">
      <button type="button" onClick={() => copy(curl(call), "curl")}>
        Copy as curl
      </button>
      <button type="button" onClick={() => copy(python(call), "Python")}>
        Copy as Python
      </button>
      <span class="quiet small" role="status">
        {said}
      </span>
      <dialog ref={dialog} aria-label="The request" class="by-hand">
        <p>This browser does not let pages copy here. Copy it by hand:</p>
        <textarea
          readOnly
          rows={12}
          value={byHand}
          aria-label="Command"
          onFocus={(event) => event.currentTarget.select()}
        />
        <div class="actions">
          <button type="button" onClick={() => dialog.current?.close()}>
            Close
          </button>
        </div>
      </dialog>
    </span>
  );
}
