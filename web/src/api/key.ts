/** The API key: asked for once, kept for this tab, or for this browser if the person says so. */

import { effect, signal } from "@preact/signals";

const NAME = "paddock.key";

export const key = signal<string | null>(sessionStorage.getItem(NAME) ?? localStorage.getItem(NAME));

/** How many keys have been given; the same one may be given twice. */
export const keysGiven = signal(0);

/** Whether the server has refused what we have, and why: the page then asks for a key. */
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

/** Ask for another key than the one that was refused: true when there is one, false if nobody wants to give it. */
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
