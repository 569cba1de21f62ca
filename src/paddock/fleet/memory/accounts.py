"""Memory as far as models are concerned: what they need, what they hold, and what they may have."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from paddock.errors import InsufficientMemory
from paddock.fleet.catalogue.model import Model
from paddock.fleet.lifecycle.model_state import Seat
from paddock.fleet.lifecycle.policy import Bytes, Limits, Shortage
from paddock.fleet.lifecycle.rules import Rules
from paddock.fleet.memory.cache_shares import cache_room

_HELP = "a smaller context (-c), fewer requests at once (-np) or a smaller cache (-ctk q8_0 -ctv q8_0) would help"


class Memory(Protocol):
    """What there is of it on this machine."""

    def available(self) -> Bytes:
        """What is free on each device right now. To be asked on a thread of its own: GPUs take their time."""

    def taken(self, pid: int) -> Bytes:
        """What a worker holds that nobody could take from it without ending it; on devices where that can be told."""

    def changed(self) -> None:
        """A worker has come or gone."""


class Accounts:
    def __init__(self, memory: Memory, *, gpu: bool) -> None:
        self._memory = memory
        self._gpu = gpu
        self._free: Bytes = {}

    async def look(self) -> Bytes:
        """See how much is free. What is decided later goes by that."""
        self._free = await asyncio.to_thread(self._memory.available)
        return self._free

    def changed(self) -> None:
        """A worker has come or gone."""
        self._memory.changed()

    def needs(self, model: Model) -> dict[str, int]:
        """What a model would take, by its header; nothing where that cannot be told."""
        found = model.estimate(gpu=self._gpu)
        if found is None:
            return {}
        if not self._gpu:
            return {"host": found.total + found.process}
        # Layers that are offloaded as far as there is room ask for none.
        return {"host": found.host.total + found.process, "gpu": 0 if model.auto_layers else found.device.total}

    def limits(self, rules: Rules, seats: Iterable[Seat]) -> Limits:
        """What the operator allows, and no more than is free beside what the models hold already."""
        memory = dict(rules.memory_limit)
        if rules.check_memory:
            held: dict[str, int] = {}
            for seat in seats:
                for device, taken in self.measure(seat).items():
                    held[device] = held.get(device, 0) + taken
            for device, free in self._free.items():
                most = free + held.get(device, 0)
                memory[device] = min(memory.get(device, most), most)
        return Limits(memory, rules.models_max)

    def cache_room(self, rules: Rules, seats: Iterable[Seat]) -> int:
        """Bytes for the prefixes of all models together: what is measured of the workers counts before them."""
        limit = rules.memory_limit.get("host")
        if limit is None:
            return rules.cache_ram
        taken = 0
        for seat in seats:
            own = self.measure(seat).get("host", 0) - seat.stored
            taken += max(seat.takes.get("host", 0), own)
        return cache_room(rules.cache_ram, limit, taken)

    async def allowed(self, rules: Rules, seats: Iterable[Seat]) -> Bytes:
        """The same as it is now, for somebody who looks on; with GPUs, which take too long to be asked each time, what
        the operator allows.
        """
        if self._gpu:
            return rules.memory_limit
        if rules.check_memory:
            await self.look()
        return self.limits(rules, seats).memory

    def measure(self, seat: Seat) -> Bytes:
        """What its worker holds; on devices where that cannot be told, what it needs. Needs are corrected by it."""
        if seat.phase == "out" or seat.worker is None or seat.worker.pid is None:
            return {}
        needs, taken = dict(seat.needs or {}), self._memory.taken(seat.worker.pid)
        stored = {"host": seat.stored}  # which goes when it must
        seat.needs = needs | {
            device: max(size - stored.get(device, 0), needs.get(device, 0)) for device, size in taken.items()
        }
        return seat.takes | dict(taken)


def insufficient(name: str, shortage: Shortage) -> InsufficientMemory:
    keeping = f", of which {', '.join(shortage.keeping)} always keep {gib(shortage.pinned)}" if shortage.keeping else ""
    return InsufficientMemory(
        f"{name} needs {gib(shortage.needed)} of {shortage.device} memory, but all models together may have "
        f"{gib(shortage.limit)}{keeping}; {_HELP}",
        param="model",
        retry_after=60,
    )


def gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def in_words(**told: Bytes) -> dict[str, str]:
    """Sizes as a log shows them; nothing of those that are not known."""
    words = {name: ", ".join(f"{at} {gib(size)}" for at, size in sizes.items() if size) for name, sizes in told.items()}
    return {name: text for name, text in words.items() if text}
