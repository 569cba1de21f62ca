"""Policies that choose a replica, Paddock's among them. Each router has its own, which sees only its own requests."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable

from paddock.replicas.routing import Blocks, Load, Router
from paddock_lab.routing.machines import Machine
from paddock_lab.routing.replica import Request


class Policy(ABC):
    def __init__(self, machine: Machine, replicas: int, rng: random.Random) -> None:
        self.replicas, self.rng = replicas, rng
        self.busy = [0] * replicas
        """Unfinished requests of each replica that this router sent."""

    @abstractmethod
    def choose(self, request: Request) -> int: ...

    def sent(self, replica: int) -> None:
        self.busy[replica] += 1

    def ended(self, replica: int) -> None:
        self.busy[replica] -= 1


class RandomChoice(Policy):
    def choose(self, request: Request) -> int:
        return self.rng.randrange(self.replicas)


class RoundRobin(Policy):
    last = -1

    def choose(self, request: Request) -> int:
        self.last = (self.last + 1) % self.replicas
        return self.last


class LeastBusy(Policy):
    """Random among equals."""

    def choose(self, request: Request) -> int:
        start = self.rng.randrange(self.replicas)
        around = self.busy[start:] + self.busy[:start]
        return (start + around.index(min(around))) % self.replicas


class FirstBlock(Policy):
    """By the first block only, as consistent hashing of a prompt's beginning does. Ignores the load."""

    def choose(self, request: Request) -> int:
        return request.chain[0] % self.replicas


class Sticky(Policy):
    """By user, as a cookie would do. Ignores the load."""

    def choose(self, request: Request) -> int:
        return self.rng.randrange(self.replicas) if request.user is None else request.user % self.replicas


class Thresholds(Policy):
    """The default of the routers of SGLang and vLLM (`cache_aware`), from their documents.

    If loads differ much, the least busy replica; else the one with the longest cached prefix, if that is long enough;
    else the one with the smallest cache.
    """

    ENOUGH, APART, TIMES = 0.3, 64, 1.5

    def __init__(self, machine: Machine, replicas: int, rng: random.Random) -> None:
        super().__init__(machine, replicas, rng)
        self._held = [Blocks(machine.cache_blocks) for _ in range(replicas)]

    def choose(self, request: Request) -> int:
        chosen = self._choose(request.chain)
        self._held[chosen].hold(request.chain)
        return chosen

    def _choose(self, chain: tuple[int, ...]) -> int:
        least, most = min(self.busy), max(self.busy)
        if most - least > self.APART and most > self.TIMES * least:
            return self.busy.index(least)
        known = [held.known(chain) for held in self._held]
        if max(known) > self.ENOUGH * len(chain):
            return known.index(max(known))
        sizes = [len(held) for held in self._held]
        return sizes.index(min(sizes))


class Prefix(Policy):
    """Paddock's own router."""

    def __init__(self, machine: Machine, replicas: int, rng: random.Random) -> None:
        super().__init__(machine, replicas, rng)
        self._slots = machine.slots
        self._numbers = {f"replica-{number}": number for number in range(replicas)}
        self._names = list(self._numbers)
        self._router = Router(self._names, machine.cache_blocks)
        self._loads = dict.fromkeys(self._names, Load(0, 0, machine.slots))

    def choose(self, request: Request) -> int:
        choice = self._router.choose(request.chain, self._loads)
        assert choice is not None, "all replicas are available"
        self._router.began(choice.name, request.chain)
        return self._numbers[choice.name]

    def sent(self, replica: int) -> None:
        super().sent(replica)
        self._update_load(replica)

    def ended(self, replica: int) -> None:
        super().ended(replica)
        self._update_load(replica)

    def _update_load(self, replica: int) -> None:
        busy = self.busy[replica]
        self._loads[self._names[replica]] = Load(min(busy, self._slots), max(0, busy - self._slots), self._slots)


POLICIES: dict[str, Callable[[Machine, int, random.Random], Policy]] = {
    "prefix": Prefix,
    "random": RandomChoice,
    "round-robin": RoundRobin,
    "least-busy": LeastBusy,
    "first-block": FirstBlock,
    "sticky": Sticky,
    "thresholds": Thresholds,
}
