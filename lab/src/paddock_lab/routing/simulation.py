"""A discrete-event simulation of routers and replicas, with its own clock. The same seed gives the same result."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass
from itertools import count

from paddock_lab.routing.machines import Machine
from paddock_lab.routing.policies import POLICIES
from paddock_lab.routing.replica import Replica, Request
from paddock_lab.routing.traffic import Mix, Traffic
from paddock_lab.statistics import percentile

SINGLE = "one big"
"""A single replica as large and as fast as all together: the upper bound for any policy."""


@dataclass(frozen=True)
class Setting:
    policy: str
    replicas: int
    routers: int
    stay: bool
    """All requests of a user use the same router; else each uses a random one."""
    machine: Machine
    mix: Mix
    warm_up: float
    """Simulated seconds that do not count."""
    seconds: float
    seed: int


@dataclass(frozen=True)
class Outcome:
    requests: int
    """Requests that were answered in the seconds that count. All values below are about these."""
    hit_rate: float
    """The share of cached prompt tokens."""
    first_token: float
    first_token_95: float
    busiest: float
    """Requests of the busiest replica divided by the mean of all, averaged over time."""
    load: float
    """Running and waiting requests per replica, averaged over time."""


def simulate(setting: Setting) -> Outcome:
    run = _Run(setting)
    run.until(setting.warm_up + setting.seconds)
    return run.outcome()


class _Run:
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        end = setting.warm_up + setting.seconds
        self._traffic = Traffic(setting.mix, setting.replicas, end, setting.seed)
        big = setting.policy == SINGLE
        machine = setting.machine.times(setting.replicas) if big else setting.machine
        self._replicas = [Replica(machine) for _ in range(1 if big else setting.replicas)]
        self._rng = random.Random(f"{setting.seed} routers")
        kind = POLICIES["round-robin" if big else setting.policy]
        self._routers = [kind(machine, len(self._replicas), self._rng) for _ in range(setting.routers)]
        self._order = count()
        self._events: list[tuple[float, int, Request | int, int]] = []
        """An arriving request; or a replica with a completion, and its version."""
        for time, request in self._traffic.independent_requests():
            self._schedule(time, request)
        self._ended: list[Request] = []
        self._busiest: list[float] = []
        self._load: list[float] = []

    def until(self, end: float) -> None:
        look = self._setting.warm_up
        while self._events and self._events[0][0] <= end:
            now, _, what, version = heapq.heappop(self._events)
            while look < now:
                self._sample_load()
                look += 1
            if isinstance(what, Request):
                self._send(what, now)
            elif self._replicas[what].version == version:
                self._complete(what, now)

    def outcome(self) -> Outcome:
        counted = [request for request in self._ended if request.arrived >= self._setting.warm_up]
        if not counted:
            raise ValueError(f"no request was answered in {self._setting.seconds:g} s")
        times = [request.first_token - request.arrived for request in counted]
        return Outcome(
            requests=len(counted),
            hit_rate=sum(request.cached for request in counted) / sum(request.tokens for request in counted),
            first_token=percentile(times, 50),
            first_token_95=percentile(times, 95),
            busiest=sum(self._busiest) / max(1, len(self._busiest)),
            load=sum(self._load) / max(1, len(self._load)),
        )

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _schedule(self, time: float, what: Request | int, version: int = 0) -> None:
        heapq.heappush(self._events, (time, next(self._order), what, version))

    def _send(self, request: Request, now: float) -> None:
        request.arrived = now
        if self._setting.stay and request.user is not None:
            request.router = request.user % len(self._routers)
        else:
            request.router = self._rng.randrange(len(self._routers))
        router = self._routers[request.router]
        chosen = router.choose(request)
        router.sent(chosen)
        self._replicas[chosen].accept(request, now)
        self._schedule_next(chosen)

    def _complete(self, number: int, now: float) -> None:
        for request in self._replicas[number].advance_to(now):
            self._routers[request.router].ended(number)
            self._ended.append(request)
            if following := self._traffic.after(request, now):
                self._schedule(*following)
        self._schedule_next(number)

    def _schedule_next(self, number: int) -> None:
        replica = self._replicas[number]
        if (time := replica.next) is not None:
            self._schedule(time, number, replica.version)

    def _sample_load(self) -> None:
        """Once per simulated second that counts."""
        busy = [replica.busy for replica in self._replicas]
        if total := sum(busy):
            self._busiest.append(max(busy) * len(busy) / total)
        self._load.append(total / self._setting.replicas)
