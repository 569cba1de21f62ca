"""One run of events: who asks, who is chosen, what becomes of it. It has its own clock, and no chance but the seed."""

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

BIG = "one big"
"""A single replica as large and as fast as all: what any policy could reach at best."""


@dataclass(frozen=True)
class Setting:
    policy: str
    replicas: int
    routers: int
    stay: bool
    """Whether a user's requests all come through the same one, or each through any."""
    machine: Machine
    mix: Mix
    warm_up: float
    """Seconds before those that count."""
    seconds: float
    seed: int


@dataclass(frozen=True)
class Outcome:
    requests: int
    """That were answered in the seconds that count, as far as all below."""
    hit_rate: float
    """Of prompt tokens."""
    first_token: float
    first_token_95: float
    busiest: float
    """How many times as many requests the busiest replica has as all on average, at any moment."""
    load: float
    """Requests that run or wait at any moment, by replicas."""


def simulate(setting: Setting) -> Outcome:
    run = _Run(setting)
    run.until(setting.warm_up + setting.seconds)
    return run.outcome()


class _Run:
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        end = setting.warm_up + setting.seconds
        self._traffic = Traffic(setting.mix, setting.replicas, end, setting.seed)
        big = setting.policy == BIG
        machine = setting.machine.times(setting.replicas) if big else setting.machine
        self._replicas = [Replica(machine) for _ in range(1 if big else setting.replicas)]
        self._chance = random.Random(f"{setting.seed} routers")
        kind = POLICIES["round-robin" if big else setting.policy]
        self._routers = [kind(machine, len(self._replicas), self._chance) for _ in range(setting.routers)]
        self._order = count()
        self._events: list[tuple[float, int, Request | int, int]] = []
        """A request that arrives; or the number of a replica where something is complete, and its version."""
        for moment, request in self._traffic.by_the_clock():
            self._expect(moment, request)
        self._ended: list[Request] = []
        self._busiest: list[float] = []
        self._load: list[float] = []

    def until(self, end: float) -> None:
        look = self._setting.warm_up
        while self._events and self._events[0][0] <= end:
            now, _, what, version = heapq.heappop(self._events)
            while look < now:
                self._look()
                look += 1
            if isinstance(what, Request):
                self._send(what, now)
            elif self._replicas[what].version == version:
                self._proceed(what, now)

    def outcome(self) -> Outcome:
        counted = [request for request in self._ended if request.arrived >= self._setting.warm_up]
        if not counted:
            raise ValueError(f"nobody came and was answered in {self._setting.seconds:g} s")
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

    def _expect(self, moment: float, what: Request | int, version: int = 0) -> None:
        heapq.heappush(self._events, (moment, next(self._order), what, version))

    def _send(self, request: Request, now: float) -> None:
        request.arrived = now
        if self._setting.stay and request.user is not None:
            request.router = request.user % len(self._routers)
        else:
            request.router = self._chance.randrange(len(self._routers))
        router = self._routers[request.router]
        chosen = router.choose(request)
        router.sent(chosen)
        self._replicas[chosen].accept(request, now)
        self._follow(chosen)

    def _proceed(self, number: int, now: float) -> None:
        for request in self._replicas[number].proceed(now):
            self._routers[request.router].ended(number)
            self._ended.append(request)
            if following := self._traffic.after(request, now):
                self._expect(*following)
        self._follow(number)

    def _follow(self, number: int) -> None:
        replica = self._replicas[number]
        if (moment := replica.next) is not None:
            self._expect(moment, number, replica.version)

    def _look(self) -> None:
        """Once in a second of those that count."""
        busy = [replica.busy for replica in self._replicas]
        if total := sum(busy):
            self._busiest.append(max(busy) * len(busy) / total)
        self._load.append(total / self._setting.replicas)
