/** Light, dark, or as the system. */

import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";

const NAME = "paddock.theme";
const ORDER: Theme[] = ["system", "light", "dark"];

export const theme = signal<Theme>(ORDER.find((name) => name === localStorage.getItem(NAME)) ?? "system");

effect(() => {
  if (theme.value === "system") {
    delete document.documentElement.dataset.theme;
    localStorage.removeItem(NAME);
  } else {
    document.documentElement.dataset.theme = theme.value;
    localStorage.setItem(NAME, theme.value);
  }
});

export function nextTheme(): void {
  theme.value = ORDER[(ORDER.indexOf(theme.value) + 1) % ORDER.length] as Theme;
}
