/** Short messages at the bottom of the page, some with an undo button. */

import { signal } from "@preact/signals";
import { TEXT } from "../text";
import { IconButton } from "./Icon";

interface Notice {
  text: string;
  undo: (() => void) | null;
}

const notice = signal<Notice | null>(null);
const SHOWN_MS = 10_000;
let timer = 0;

export function notify(text: string, undo: (() => void) | null = null): void {
  clearTimeout(timer);
  notice.value = { text, undo };
  timer = setTimeout(dismiss, SHOWN_MS) as unknown as number;
}

function dismiss(): void {
  notice.value = null;
}

export function Notices() {
  const shown = notice.value;
  return (
    <div class="notices" role="status">
      {shown && (
        <div class="notice">
          <span>{shown.text}</span>
          {shown.undo && (
            <button
              type="button"
              class="plain"
              onClick={() => {
                shown.undo?.();
                dismiss();
              }}
            >
              {TEXT.app.undo}
            </button>
          )}
          <IconButton icon="close" label={TEXT.app.dismiss} onClick={dismiss} />
        </div>
      )}
    </div>
  );
}
