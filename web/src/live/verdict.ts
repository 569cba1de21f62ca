/** The state of the server in one line: what runs, and why requests wait. */

import type { LiveModel, LiveState } from "../api/live";
import type { Pace } from "./history";
import { counted, duration, listed, percent, rate } from "./words";

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
  if (active.length > NAMED) told.push(`${counted(active.length - NAMED, "more model")} at work`);
  if (told.length === 0) told.push(rest(models));
  const [first, ...more] = failed;
  if (first) told.push(`${first.id} failed${more.length > 0 ? ` and ${more.length} more` : ""}: ${reasonOf(first)}`);
  const waits = active.some(({ waiting }) => waiting > 0);
  return { tone: failed.length > 0 ? "problem" : waits ? "busy" : "calm", text: told.join("; ") };
}

function isActive(model: LiveModel): boolean {
  return model.state === "loading" || load(model) > 0;
}

/** The number of its requests. */
function load({ slots, waiting }: LiveModel): number {
  return waiting + slots.filter(({ state }) => state !== "idle").length;
}

function doings(model: LiveModel, pace: Pace | undefined): string {
  const { id, state, slots, waiting, progress } = model;
  if (state === "loading") {
    const far = progress === null ? "" : `, ${percent(progress)}`;
    return `${id} is loading${far}${waiting > 0 ? `, ${waiting} waiting for it` : ""}`;
  }
  const answering = slots.filter((slot) => slot.state === "answer").length;
  const reading = slots.filter((slot) => slot.state === "prompt").length;
  const parts: string[] = [];
  if (answering > 0) parts.push(`${answering} answering${speed(pace?.answered)}`);
  if (reading > 0) parts.push(`${reading} reading ${reading === 1 ? "a prompt" : "prompts"}${speed(pace?.read)}`);
  if (waiting > 0) parts.push(`${waiting} waiting${because(model, pace)}`);
  return `${id}: ${parts.join(", ")}`;
}

function speed(tokens: number | undefined): string {
  return tokens ? ` at ${rate(tokens)} tokens/s` : "";
}

function because({ slots, state }: LiveModel, pace: Pace | undefined): string {
  const busy = slots.filter((slot) => slot.state !== "idle").length;
  if (state !== "loaded") return " for it to be loaded";
  if (slots.length > 0 && busy === slots.length) {
    return slots.length === 1 ? " because its one slot is busy" : ` because all ${slots.length} slots are busy`;
  }
  return pace && pace.preemptions > 0 ? " because the context is full" : "";
}

function rest(models: readonly LiveModel[]): string {
  const loaded = models.filter(({ state }) => state === "loaded");
  if (models.length === 0) return "There is no model that you may use";
  if (loaded.length === 0) return "No model is loaded; the first request loads one";
  const [first] = loaded;
  if (loaded.length > 1 || !first) return `Idle: ${listed(loaded.map(({ id }) => id))} are loaded`;
  const leaves = first.leaves_in === null ? "" : `, unloads in ${duration(first.leaves_in)}`;
  return `Idle: ${first.id} is loaded${leaves}`;
}

function reasonOf({ reason }: LiveModel): string {
  return (reason ?? "unknown reason").replace(/\.$/, "");
}
