/** Which of the page's views is shown: the part of the address after `#`. */

import { signal } from "@preact/signals";

export type View = "chat" | "live" | "playground";

export interface Route {
  view: View;
  /** What the view shows, a conversation for example. */
  id: string | null;
}

export const route = signal<Route>(parse(location.hash));

addEventListener("hashchange", () => {
  route.value = parse(location.hash);
});

export function href(view: View, id?: string): string {
  return id ? `#/${view}/${encodeURIComponent(id)}` : `#/${view}`;
}

function parse(hash: string): Route {
  const [, view, id] = hash.split("/");
  return {
    view: view === "live" || view === "playground" ? view : "chat",
    id: id ? decodeURIComponent(id) : null,
  };
}
