import { useState } from "preact/hooks";
import { key } from "../api/key";
import { TEXT } from "../text";
import { copyText } from "../ui/copy";
import { Dialog } from "../ui/Dialog";
import { type Call, curl, type Json, python } from "./commands";

/** Buttons that copy the current request for a shell and for Python. */
export function CopyCall({ path, body }: { path: string; body: Readonly<Record<string, Json>> }) {
  const [said, setSaid] = useState("");
  const [byHand, setByHand] = useState<string | null>(null);
  // Relative to the page, as requests are, so that it works behind a proxy.
  const call: Call = { url: new URL(`.${path}`, document.baseURI).href, body, keyed: key.value !== null };

  async function copy(text: string, what: string) {
    if (await copyText(text)) setSaid(TEXT.playground.copiedAs(what));
    else setByHand(text);
  }

  return (
    <span class="copy-call">
      <button type="button" onClick={() => copy(curl(call), "curl")}>
        {TEXT.playground.copyCurl}
      </button>
      <button type="button" onClick={() => copy(python(call), "Python")}>
        {TEXT.playground.copyPython}
      </button>
      <span class="quiet small" role="status">
        {said}
      </span>
      {byHand !== null && (
        <Dialog title={TEXT.playground.cannotCopy} wide onClose={() => setByHand(null)}>
          <label>
            {TEXT.playground.copyByHand}
            <textarea
              readOnly
              rows={12}
              class="literal"
              value={byHand}
              onFocus={(event) => event.currentTarget.select()}
            />
          </label>
        </Dialog>
      )}
    </span>
  );
}
