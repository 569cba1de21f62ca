/** Settings that the user keeps in this browser: presets and system prompts by name, and defaults by model. */

import { signal } from "@preact/signals";
import { filled, type Settings } from "../chat/settings";

export interface Library {
  presets: Record<string, Settings>;
  prompts: Record<string, string>;
  /** What a new chat with a model starts with. */
  defaults: Record<string, Settings>;
}

const NAME = "paddock.library";

export const library = signal<Library>(read(localStorage.getItem(NAME)));

// Another tab has changed it.
addEventListener("storage", ({ key, newValue }) => {
  if (key === NAME) library.value = read(newValue);
});

/** What is stored, without what this version does not know. */
export function read(text: string | null): Library {
  try {
    const { presets, prompts, defaults } = JSON.parse(text ?? "{}");
    return {
      presets: mapped(presets, (value) => filled(value)),
      prompts: mapped(prompts, (value) => (typeof value === "string" ? value : null)),
      defaults: mapped(defaults, (value) => filled(value)),
    };
  } catch {
    return { presets: {}, prompts: {}, defaults: {} };
  }
}

function mapped<T>(value: unknown, use: (value: unknown) => T | null): Record<string, T> {
  if (typeof value !== "object" || value === null) return {};
  return Object.fromEntries(
    Object.entries(value).flatMap(([name, each]) => {
      const used = use(each);
      return used === null ? [] : [[name, used]];
    }),
  );
}

/** Store an entry under a name, or delete it: null. */
export function keep<Kind extends keyof Library>(kind: Kind, name: string, value: Library[Kind][string] | null): void {
  const entries: Record<string, unknown> = { ...library.value[kind] };
  if (value === null) delete entries[name];
  else entries[name] = value;
  library.value = { ...library.value, [kind]: entries };
  localStorage.setItem(NAME, JSON.stringify(library.value));
}

export function namesOf(kind: "presets" | "prompts"): string[] {
  return Object.keys(library.value[kind]).sort((one, other) => one.localeCompare(other));
}
