/** Follows `GET /live` while the view is visible, and knows the state of the connection. */

import { effect, signal, untracked } from "@preact/signals";
import { ApiError, errorOf, getEvents } from "../api/client";
import { key } from "../api/key";
import type { LiveState, Prefixes, Reports, Tree } from "../api/live";
import type { ServerEvent } from "../api/sse";
import { TEXT } from "../text";
import { remember, type Sample, sampleOf } from "./history";

export type Connection =
  | { kind: "connecting" }
  | { kind: "open" }
  /** It failed and is retried. */
  | { kind: "lost"; reason: string }
  /** The view is not visible. */
  | { kind: "paused" }
  /** A retry would not help. */
  | { kind: "refused"; reason: string };

export const connection = signal<Connection>({ kind: "connecting" });
export const state = signal<LiveState | null>(null);
export const trees = signal<ReadonlyMap<string, Tree>>(new Map());
export const prefixes = signal<ReadonlyMap<string, Prefixes>>(new Map());
export const reports = signal<ReadonlyMap<string, Reports>>(new Map());
/** Kept while the page is open. */
export const history = signal<readonly Sample[]>([]);

/** The server sends an event each second. After this many seconds without one the connection is lost. */
const SILENCE = 15_000;
/** No key, no permission, or no such route: a retry would change nothing. */
const FINAL = new Set([401, 403, 404, 501]);
const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 8_000;

/** Follow the stream until the returned function is called. While the page is hidden there is no connection. */
export function watch(): () => void {
  let stop = new AbortController();

  function restart(): void {
    stop.abort();
    stop = new AbortController();
    if (document.hidden) connection.value = { kind: "paused" };
    else void follow(stop.signal);
  }

  document.addEventListener("visibilitychange", restart);
  // Runs at the start, and again after another key is entered.
  const forget = effect(() => {
    key.value;
    untracked(restart);
  });
  return () => {
    forget();
    document.removeEventListener("visibilitychange", restart);
    stop.abort();
  };
}

async function follow(signal: AbortSignal): Promise<void> {
  let pause = FIRST_PAUSE;
  connection.value = { kind: "connecting" };
  while (!signal.aborted) {
    const silence = new Silence(SILENCE);
    let heard = false;
    let reason = TEXT.live.connection.closed as string;
    try {
      for await (const event of getEvents("/live", AbortSignal.any([signal, silence.signal]))) {
        silence.broken();
        if (signal.aborted) return;
        if (event.event === "error") throw errorOf(JSON.parse(event.data), 503);
        if (!heard) begin();
        heard = true;
        pause = FIRST_PAUSE;
        take(event);
      }
    } catch (error) {
      if (error instanceof ApiError && FINAL.has(error.status)) {
        connection.value = { kind: "refused", reason: error.message };
        return;
      }
      if (silence.signal.aborted) reason = `no data for ${SILENCE / 1000} s`;
      else reason = error instanceof ApiError ? error.message.replace(/\.$/, "") : TEXT.live.connection.broken;
    } finally {
      silence.over();
    }
    if (signal.aborted) return;
    connection.value = { kind: "lost", reason };
    await sleep(pause, signal);
    pause = Math.min(2 * pause, LONGEST_PAUSE);
  }
}

/** The server may have restarted, so older trees are dropped until it sends them again. */
function begin(): void {
  connection.value = { kind: "open" };
  trees.value = new Map();
  prefixes.value = new Map();
  reports.value = new Map();
}

function take({ event, data }: ServerEvent): void {
  if (event === "state") {
    const now = JSON.parse(data) as LiveState;
    const loaded = new Set(now.models.filter((model) => model.state === "loaded").map(({ id }) => id));
    state.value = now;
    history.value = remember(history.value, sampleOf(now));
    if ([...trees.value.keys()].some((model) => !loaded.has(model))) {
      trees.value = new Map([...trees.value].filter(([model]) => loaded.has(model)));
    }
    if ([...reports.value.keys()].some((model) => !loaded.has(model))) {
      reports.value = new Map([...reports.value].filter(([model]) => loaded.has(model)));
    }
  } else if (event === "reports") {
    const found = JSON.parse(data) as Reports;
    reports.value = new Map(reports.value).set(found.model, found);
  } else if (event === "prefixes") {
    const found = JSON.parse(data) as Prefixes;
    prefixes.value = new Map(prefixes.value).set(found.model, found);
  } else if (event === "tree") {
    const tree = JSON.parse(data) as Tree;
    trees.value = new Map(trees.value).set(tree.model, tree);
  }
}

/** Aborts after a timeout. */
class Silence {
  private readonly controller = new AbortController();
  private timer: ReturnType<typeof setTimeout>;

  constructor(private readonly longest: number) {
    this.timer = this.start();
  }

  get signal(): AbortSignal {
    return this.controller.signal;
  }

  broken(): void {
    clearTimeout(this.timer);
    this.timer = this.start();
  }

  over(): void {
    clearTimeout(this.timer);
  }

  private start(): ReturnType<typeof setTimeout> {
    return setTimeout(() => this.controller.abort(), this.longest);
  }
}

function sleep(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
