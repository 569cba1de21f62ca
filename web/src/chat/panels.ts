/** The panels beside the conversation, and how to start a new one. */

import { signal } from "@preact/signals";
import { href } from "../app/route";
import { open } from "./session";

export const settingsOpen = signal(false);

/** On a phone. On larger screens the history is always shown. */
export const historyOpen = signal(false);

export function newChat(): void {
  // Now, not when the new address is noticed: what is typed until then belongs to the new chat.
  void open(null);
  location.hash = href("chat");
  historyOpen.value = false;
  focusComposer();
}

export function focusComposer(): void {
  requestAnimationFrame(() => document.getElementById("composer")?.focus());
}

export const SEARCH_ID = "history-search";

/** Whether the search box shall be focused as soon as it is shown. */
export const searchWanted = signal(false);

export function searchHistory(): void {
  historyOpen.value = true;
  searchWanted.value = true;
}
