/** Whether the page is light or dark, for code that draws with its own colours. */

import { signal } from "@preact/signals";

const dark = matchMedia("(prefers-color-scheme: dark)");

function current(): "light" | "dark" {
  const chosen = document.documentElement.dataset.theme;
  if (chosen === "light" || chosen === "dark") return chosen;
  return dark.matches ? "dark" : "light";
}

export const scheme = signal(current());

dark.addEventListener("change", () => {
  scheme.value = current();
});
new MutationObserver(() => {
  scheme.value = current();
}).observe(document.documentElement, { attributeFilter: ["data-theme"] });
