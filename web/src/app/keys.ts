/** Keyboard shortcuts. They work wherever the focus is, unless a dialog is open. */

/** By combination: `mod+shift+o`, where `mod` is Ctrl or ⌘. Shortcuts without `mod` are off while the user types. */
export function onKeys(bindings: Record<string, () => void>): () => void {
  function pressed(event: KeyboardEvent) {
    if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
    const name = combination(event);
    const handler = bindings[name];
    if (!handler || (!name.startsWith("mod+") && isTyping(event.target))) return;
    event.preventDefault();
    handler();
  }
  addEventListener("keydown", pressed);
  return () => removeEventListener("keydown", pressed);
}

function combination({ key, ctrlKey, metaKey, shiftKey }: KeyboardEvent): string {
  if (!ctrlKey && !metaKey) return key;
  return `mod+${shiftKey && key.length === 1 && key !== "/" ? "shift+" : ""}${key.toLowerCase()}`;
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && target.matches("input, textarea, select");
}
