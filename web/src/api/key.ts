/** The API key. The page asks for it once and keeps it for this tab, or for this browser if the user wants that. */

import { effect, signal } from "@preact/signals";

const NAME = "paddock.key";

export const key = signal<string | null>(sessionStorage.getItem(NAME) ?? localStorage.getItem(NAME));

/** How many keys were entered. The same one may be entered twice. */
export const keysGiven = signal(0);

/** Whether the server refused our key, and why. The page then asks for another. */
export const refused = signal<string | null>(null);

export function keep(value: string, remember: boolean): void {
  forget();
  (remember ? localStorage : sessionStorage).setItem(NAME, value);
  key.value = value;
  keysGiven.value++;
  refused.value = null;
}

export function forget(): void {
  sessionStorage.removeItem(NAME);
  localStorage.removeItem(NAME);
  key.value = null;
}

/** Ask for another key after one was refused. True if the user enters one, false if not. */
export function anotherKey(refusedAt: number, reason: string, signal?: AbortSignal | null): Promise<boolean> {
  if (keysGiven.value > refusedAt) return Promise.resolve(true);
  refused.value = reason;
  return new Promise((resolve) => {
    const stop = effect(() => {
      if (keysGiven.value > refusedAt) settle(true);
      else if (refused.value === null) settle(false);
    });
    function settle(given: boolean) {
      resolve(given);
      queueMicrotask(() => stop());
    }
    signal?.addEventListener("abort", () => settle(false), { once: true });
  });
}
