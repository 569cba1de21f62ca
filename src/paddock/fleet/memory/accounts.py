"""Memory accounting: what models need, what they hold and what they may take."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from paddock.errors import InsufficientMemory
from paddock.fleet.catalogue.model import Model
from paddock.fleet.lifecycle.model_state import ModelState
from paddock.fleet.lifecycle.policy import Bytes, Limits, Shortage
from paddock.fleet.lifecycle.rules import Rules
from paddock.fleet.memory.cache_shares import cache_room, cache_shares, is_significant
from paddock.fleet.memory.estimate import Estimate
from paddock.fleet.memory.fit import Room

_RETRY_SECONDS = 10
_HELP = "Use a smaller context (-c), fewer slots (-np) or a smaller cache (-ctk q8_0 -ctv q8_0)"


class Memory(Protocol):
    """The memory of this machine."""

    def available(self) -> Bytes:
        """Free bytes on each device. Call it on a thread: GPU drivers may be slow."""

    def taken(self, pid: int) -> Bytes:
        """Bytes that a worker holds and that the kernel cannot reclaim, on devices where that is known."""

    def changed(self) -> None:
        """A worker started or ended: drop cached values."""


class Accounts:
    def __init__(self, memory: Memory, *, gpu: bool) -> None:
        self._memory = memory
        self._gpu = gpu
        self._free: Bytes = {}

    async def refresh(self) -> Bytes:
        """Measure the free memory that later decisions use."""
        self._free = await asyncio.to_thread(self._memory.available)
        return self._free

    def changed(self) -> None:
        """A worker started or ended."""
        self._memory.changed()

    def estimate(self, model: Model) -> Estimate | None:
        """The memory that a model would take by its parts; None if unknown."""
        return model.estimate(gpu=self._gpu)

    def needs(self, model: Model) -> dict[str, int]:
        """The memory that a model would take, estimated from its header; empty if unknown."""
        found = model.least_estimate(gpu=self._gpu)
        if found is None:
            return {}
        if model.options.rpc:
            return {"host": found.host.total + found.process}  # the rest is on other machines
        if not self._gpu:
            return {"host": found.total + found.process}
        # Automatically chosen layers use what is free, so they need none.
        return {"host": found.host.total + found.process, "gpu": 0 if model.auto_layers else found.device.total}

    def embedding_needs(self, model: Model) -> dict[str, int]:
        """The memory of the context in which a model that generates computes embeddings; empty if unknown."""
        found = model.embedding_estimate(gpu=self._gpu)
        if found is None:
            return {}
        return {"host": found.host.total, "gpu": found.device.total} if self._gpu else {"host": found.total}

    def check_embeddings(self, state: ModelState, extra: Bytes, rules: Rules, states: Iterable[ModelState]) -> None:
        """Raise `InsufficientMemory` if the loaded model has no room for this context."""
        loaded = [other for other in states if other.phase != "unloaded"]
        for device, limit in self.limits(rules, loaded).memory.items():
            needed = extra.get(device, 0)
            left = limit - sum(other.takes.get(device, 0) for other in loaded)
            if needed > left:
                raise InsufficientMemory(
                    f"{state.model.name} has no memory for embeddings beside answers: they take {needed >> 20} MiB of "
                    f"{device} memory, and {max(left, 0) >> 20} MiB are free",
                    param="model",
                    retry_after=_RETRY_SECONDS,
                )

    def limits(self, rules: Rules, states: Iterable[ModelState]) -> Limits:
        """The configured limits, reduced to what is free plus what the models hold."""
        memory = dict(rules.memory_limit)
        if rules.check_memory:
            held: dict[str, int] = {}
            for state in states:
                for device, taken in self.measure(state).items():
                    held[device] = held.get(device, 0) + taken
            for device, free in self._free.items():
                most = free + held.get(device, 0)
                memory[device] = min(memory.get(device, most), most)
        return Limits(memory, rules.models_max)

    def room_for(self, state: ModelState, rules: Rules, states: Iterable[ModelState]) -> Room:
        """The memory that a model may take beside these others."""
        others = [other for other in states if other is not state and other.phase != "unloaded"]
        most = self.limits(rules, others).memory
        taken = {device: sum(other.takes.get(device, 0) for other in others) for device in most}
        left = {device: max(size - taken[device], 0) for device, size in most.items()}
        free = self._free.get("gpu", 0 if self._gpu else None)
        return Room(None if free is None else min(left.get("gpu", free), free), left.get("host"))

    def share_cache(self, rules: Rules, states: Sequence[ModelState]) -> None:
        """Divide the memory for prefixes between these workers, and tell each whose share has changed."""
        limit = rules.memory_limit.get("host")
        # Measuring takes time, and without a limit nothing depends on it.
        taken = 0 if limit is None else sum(map(self._host_bytes, states))
        room = cache_room(rules.cache_ram, limit, taken)
        shares = cache_shares(room, {state.model.name: state.cache_limit for state in states if state.cache_limit})
        for state in states:
            share = shares.get(state.model.name, 0)
            if not is_significant(state.cache_share, share):
                continue
            if state.phase == "loading":
                if state.worker is None:  # it gets the share with its model
                    state.cache_share = share
            elif state.worker is not None and state.worker.alive:
                state.cache_share = share
                state.worker.limit_cache(share)

    def _host_bytes(self, state: ModelState) -> int:
        """What a model takes without its prefixes: as estimated or, if that is more, as measured."""
        return max(state.takes.get("host", 0), self.measure(state).get("host", 0) - state.stored)

    async def allowed(self, rules: Rules, states: Iterable[ModelState]) -> Bytes:
        """The current limits for the live view. With GPUs, which are slow to query, the configured ones."""
        if self._gpu:
            return rules.memory_limit
        if rules.check_memory:
            await self.refresh()
        return self.limits(rules, states).memory

    def measure(self, state: ModelState) -> Bytes:
        """What its worker holds, or needs where that is unknown. Raises its needs to what was measured."""
        if state.phase == "unloaded" or state.worker is None or state.worker.pid is None:
            return {}
        needs, taken = dict(state.needs or {}), self._memory.taken(state.worker.pid)
        apart = Counter({"host": state.stored})  # can be evicted
        apart.update(state.embeddings)
        state.needs = needs | {
            device: max(size - apart[device], needs.get(device, 0)) for device, size in taken.items()
        }
        return state.takes | dict(taken)


def insufficient(name: str, shortage: Shortage) -> InsufficientMemory:
    pinned = (
        f", of which pinned models ({', '.join(shortage.pinned_models)}) keep {gib(shortage.pinned)}"
        if shortage.pinned_models
        else ""
    )
    return InsufficientMemory(
        f"{name} needs {gib(shortage.needed)} of {shortage.device} memory; the limit for all models is "
        f"{gib(shortage.limit)}{pinned}. {_HELP}",
        param="model",
        retry_after=60,
    )


def gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def sizes_for_log(**sizes: Bytes) -> dict[str, str]:
    """Sizes as log fields; unknown ones are left out."""
    texts = {name: ", ".join(f"{at} {gib(size)}" for at, size in of.items() if size) for name, of in sizes.items()}
    return {name: text for name, text in texts.items() if text}
