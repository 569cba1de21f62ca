import { signal } from "@preact/signals";
import { TEXT } from "../text";
import { Dialog } from "../ui/Dialog";

export const showShortcuts = signal(false);

const COMMAND = /Mac|iPhone|iPad/.test(navigator.userAgent) ? "⌘" : "Ctrl";

const KEYS: [keys: string[], what: string][] = [
  [["Enter"], TEXT.shortcuts.send],
  [["Shift", "Enter"], TEXT.shortcuts.newLine],
  [["Esc"], TEXT.shortcuts.stop],
  [["↑"], TEXT.shortcuts.editLast],
  [[COMMAND, "K"], TEXT.shortcuts.search],
  [[COMMAND, "Shift", "O"], TEXT.shortcuts.newChat],
  [[COMMAND, "/"], TEXT.shortcuts.model],
  [[COMMAND, "."], TEXT.shortcuts.settings],
  [[COMMAND, "Shift", "?"], TEXT.shortcuts.list],
];

export function Shortcuts() {
  return (
    <Dialog title={TEXT.shortcuts.title} onClose={() => (showShortcuts.value = false)}>
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
