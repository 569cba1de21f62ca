/** The view that the page shows: the part of the address after `#`. */

import { signal } from "@preact/signals";

export type View = "chat" | "live" | "playground" | "models";

const VIEWS: View[] = ["chat", "live", "playground", "models"];

export interface Route {
  view: View;
  /** What the view shows, for example a conversation. */
  id: string | null;
}

export const route = signal<Route>(parse(location.hash));

/** What each view showed last, so that the links between the views lead back to it. */
const last: Partial<Record<View, string | null>> = { [route.value.view]: route.value.id };

addEventListener("hashchange", () => {
  route.value = parse(location.hash);
  last[route.value.view] = route.value.id;
});

/** The address of a view as the user left it. */
export function backTo(view: View): string {
  return href(view, last[view] ?? undefined);
}

export function href(view: View, id?: string): string {
  return id ? `#/${view}/${encodeURIComponent(id)}` : `#/${view}`;
}

function parse(hash: string): Route {
  const [, view, id] = hash.split("/");
  return {
    view: VIEWS.find((known) => known === view) ?? "chat",
    id: id ? decoded(id) : null,
  };
}

function decoded(text: string): string | null {
  try {
    return decodeURIComponent(text);
  } catch {
    return null; // an invalid address
  }
}
