/** The panels beside the conversation, and how to start a new one. */

import { signal } from "@preact/signals";
import { href } from "../app/route";

export const settingsOpen = signal(false);

/** On a phone. On larger screens the history is always shown. */
export const historyOpen = signal(false);

export function newChat(): void {
  location.hash = href("chat");
  historyOpen.value = false;
  focusComposer();
}

export function focusComposer(): void {
  requestAnimationFrame(() => document.getElementById("composer")?.focus());
}

export function searchHistory(): void {
  historyOpen.value = true;
  requestAnimationFrame(() => document.getElementById("history-search")?.focus());
}
