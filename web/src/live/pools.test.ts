import { expect, test } from "vitest";
import { aModel, aPrefix, aReplica, aState, slots } from "./example";
import { replicaRates, sampleOf } from "./history";
import { busyShare, cachedShare, depths, pools, runningIn } from "./pools";
import { verdict } from "./verdict";

test("models with several replicas, or with one elsewhere, are pools", () => {
  const models = [
    aModel({ id: "alone" }),
    aModel({ id: "one", replicas: [aReplica("0")] }),
    aModel({ id: "two", replicas: [aReplica("0"), aReplica("1")] }),
    aModel({ id: "remote", replicas: [aReplica("a", { kind: "server" })] }),
  ];
  expect(pools(models).map(({ id }) => id)).toEqual(["two", "remote"]);
});

test("running requests are those in slots here and those elsewhere", () => {
  const replicas = [aReplica("0", { running: 2 }), aReplica("a", { kind: "server", running: 3 })];
  expect(runningIn(aModel({ slots: slots("answer", "prompt", "idle"), replicas }))).toBe(5);
});

test("the verdict names requests elsewhere, with their speed", () => {
  const model = aModel({ replicas: [aReplica("a", { kind: "ray", running: 3 })] });
  const paces = new Map([["demo", { read: 0, answered: 40, preemptions: 0 }]]);
  expect(verdict(aState([model]), paces).text).toBe("demo: 3 running on other servers at 40 tokens/s");
});

test("the share of busy slots and of cached prompt tokens", () => {
  expect(busyShare(aReplica("0", { running: 1, slots: 4 }))).toBe(0.25);
  expect(busyShare(aReplica("0", { running: 9, slots: 4 }))).toBe(1);
  expect(busyShare(aReplica("0", { running: 1, slots: 0 }))).toBe(null);
  expect(cachedShare(aReplica("0", { prompt_tokens: 30, cached_tokens: 10 }))).toBe(0.25);
  expect(cachedShare(aReplica("0"))).toBe(null);
  expect(cachedShare(aReplica("0", { cached_tokens: null }))).toBe(null);
});

test("the speed of each replica, also after its restart", () => {
  const at = (time: number, answered: Record<string, number>) => {
    const replicas = Object.entries(answered).map(([name, answered_tokens]) => aReplica(name, { answered_tokens }));
    return sampleOf(aState([aModel({ replicas })], time));
  };
  const history = [at(1, { a: 100, b: 50 }), at(3, { a: 120, b: 8, c: 7 })];
  expect([...replicaRates(history, "demo")]).toEqual([
    ["a", 10],
    ["b", 4],
  ]);
  expect(replicaRates(history.slice(1), "demo").size).toBe(0);
  expect(replicaRates(history, "other").size).toBe(0);
});

test("the depth of parts", () => {
  const found = depths([aPrefix(0, null), aPrefix(1, 0), aPrefix(2, 1), aPrefix(3, 0), aPrefix(4, null)]);
  expect([...found.values()]).toEqual([0, 1, 2, 1, 0]);
});
