import { signal } from "@preact/signals";
import { Dialog } from "../ui/Dialog";

export const showShortcuts = signal(false);

const COMMAND = /Mac|iPhone|iPad/.test(navigator.userAgent) ? "⌘" : "Ctrl";

const KEYS: [keys: string[], what: string][] = [
  [["Enter"], "Send"],
  [["Shift", "Enter"], "Start a new line"],
  [["Esc"], "Stop the answer"],
  [["↑"], "In an empty box: edit your last message"],
  [[COMMAND, "K"], "Search the history"],
  [[COMMAND, "Shift", "O"], "New chat"],
  [[COMMAND, "/"], "Choose a model"],
  [[COMMAND, "."], "Settings for answers"],
  [[COMMAND, "Shift", "?"], "This list"],
];

export function Shortcuts() {
  return (
    <Dialog title="Keyboard shortcuts" onClose={() => (showShortcuts.value = false)}>
      <dl class="shortcuts">
        {KEYS.map(([keys, what]) => (
          <div key={what}>
            <dt>
              {keys.map((name) => (
                <kbd key={name}>{name}</kbd>
              ))}
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
