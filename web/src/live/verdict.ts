/** The state of the server in one line: what runs, and why requests wait. */

import type { LiveModel, LiveState } from "../api/live";
import { TEXT } from "../text";
import type { Pace } from "./history";
import { runningElsewhere, runningIn } from "./pools";
import { duration, listed, percent, rate } from "./words";

export interface Verdict {
  /** `calm`: no request waits. `busy`: requests wait. `problem`: something fails. */
  tone: "calm" | "busy" | "problem";
  text: string;
}

/** At most this many models are named. */
const NAMED = 3;

export function verdict({ models }: LiveState, paces: ReadonlyMap<string, Pace>): Verdict {
  const active = models.filter(isActive).sort((left, right) => load(right) - load(left));
  const failed = models.filter(({ state, broken }) => state === "failed" && !broken);
  const told = active.slice(0, NAMED).map((model) => doings(model, paces.get(model.id)));
  if (active.length > NAMED) told.push(TEXT.live.moreActive(active.length - NAMED));
  if (told.length === 0) told.push(rest(models));
  const [first, ...more] = failed;
  if (first) told.push(TEXT.live.failed(first.id, more.length, reasonOf(first)));
  const waits = active.some(({ waiting }) => waiting > 0);
  return { tone: failed.length > 0 ? "problem" : waits ? "busy" : "calm", text: told.join("; ") };
}

function isActive(model: LiveModel): boolean {
  return model.state === "loading" || load(model) > 0;
}

/** The number of its requests. */
function load(model: LiveModel): number {
  return model.waiting + runningIn(model);
}

function doings(model: LiveModel, pace: Pace | undefined): string {
  const { id, state, slots, waiting, progress } = model;
  if (state === "loading") {
    const far = TEXT.live.loading(id, progress === null ? null : percent(progress));
    return waiting > 0 ? far + TEXT.live.waitingForLoad(waiting) : far;
  }
  const answering = slots.filter((slot) => slot.state === "answer").length;
  const reading = slots.filter((slot) => slot.state === "prompt").length;
  const parts: string[] = [];
  if (answering > 0) parts.push(TEXT.live.generating(answering) + speed(pace?.answered));
  const remote = runningElsewhere(model);
  // Of those it is not known what they do. The speed is that of all replicas.
  if (remote > 0) parts.push(TEXT.live.onReplicas(remote) + (answering > 0 ? "" : speed(pace?.answered)));
  if (reading > 0) parts.push(TEXT.live.readingPrompts(reading) + speed(pace?.read));
  if (waiting > 0) parts.push(TEXT.live.waiting(waiting) + because(model, pace));
  return `${id}: ${parts.join(", ")}`;
}

function speed(tokens: number | undefined): string {
  return tokens ? TEXT.live.speed(rate(tokens)) : "";
}

function because({ slots, state }: LiveModel, pace: Pace | undefined): string {
  const busy = slots.filter((slot) => slot.state !== "idle").length;
  if (state !== "loaded") return TEXT.live.untilLoaded;
  if (slots.length > 0 && busy === slots.length) {
    return slots.length === 1 ? TEXT.live.slotBusy : TEXT.live.slotsBusy(slots.length);
  }
  return pace && pace.preemptions > 0 ? TEXT.live.contextFull : "";
}

function rest(models: readonly LiveModel[]): string {
  const loaded = models.filter(({ state }) => state === "loaded");
  if (models.length === 0) return TEXT.live.noModels;
  if (loaded.length === 0) return TEXT.live.noneLoaded;
  const [first] = loaded;
  if (loaded.length > 1 || !first) return TEXT.live.idle(listed(loaded.map(({ id }) => id)));
  const leaves = first.leaves_in === null ? "" : TEXT.live.unloadsIn(duration(first.leaves_in));
  return TEXT.live.idle(first.id) + leaves;
}

function reasonOf({ reason }: LiveModel): string {
  return (reason ?? TEXT.live.unknownReason).replace(/\.$/, "");
}
