/** The API key: asked for once, kept for this tab, or for this browser if the person says so. */

import { signal } from "@preact/signals";

const NAME = "paddock.key";

export const key = signal<string | null>(sessionStorage.getItem(NAME) ?? localStorage.getItem(NAME));

/** Whether the server has refused what we have, and why: the page then asks for a key. */
export const refused = signal<string | null>(null);

export function keep(value: string, remember: boolean): void {
  forget();
  (remember ? localStorage : sessionStorage).setItem(NAME, value);
  key.value = value;
  refused.value = null;
}

export function forget(): void {
  sessionStorage.removeItem(NAME);
  localStorage.removeItem(NAME);
  key.value = null;
}
