"""Decides which models to load and unload. Pure: no clock, no process.

A request for an unloaded model waits. The model that has waited longest is served first, and no later model may take
the memory that it needs. To free memory, idle models are unloaded, the least recently used first. A busy model is
unloaded only after its minimum residence; it then takes no new requests and finishes those it has. Requests for an
unloaded model thus collect and are served together after the load: no thrashing, no starvation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Device = str
Bytes = Mapping[Device, int]
"""Bytes of memory on each device."""

Phase = Literal["unloaded", "loading", "loaded", "unloading"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One model as the policy sees it."""

    name: str
    needs: Bytes
    """The memory that it takes, or would take."""
    phase: Phase = "unloaded"
    busy: bool = False
    """It has requests, running or waiting."""
    resident_until: float = 0.0
    """Until then it is not unloaded while it is busy."""
    last_used: float = 0.0
    idle_timeout: float = 0.0
    """It is unloaded after this many idle seconds; 0: never."""
    pinned: bool = False
    waiting_since: float | None = None
    """The arrival of the oldest request that waits for its load; None: no request waits."""


@dataclass(frozen=True, slots=True)
class Limits:
    memory: Bytes = field(default_factory=dict)
    """The most that all models together may take; a device without an entry has no limit."""
    models: int | None = None
    """The most models that may be loaded at once."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why a model can never be loaded under the current limits."""

    device: Device
    needed: int
    limit: int
    pinned: int
    """Bytes that pinned models keep."""
    pinned_models: tuple[str, ...] = ()


@dataclass(slots=True)
class Decision:
    load: list[str] = field(default_factory=list)
    unload: list[str] = field(default_factory=list)
    impossible: dict[str, Shortage] = field(default_factory=dict)
    recheck_at: float | None = None
    """When time alone changes the decision."""

    def recheck(self, moment: float) -> None:
        self.recheck_at = moment if self.recheck_at is None else min(self.recheck_at, moment)


def decide(models: Sequence[Candidate], limits: Limits, now: float) -> Decision:
    """What to do now. After acting on it, the same call decides nothing new until something else happens."""
    decision = Decision()
    room = _Room(models, limits)
    for model in models:
        if model.phase == "loaded" and not model.busy and not model.pinned and model.idle_timeout > 0:
            if now >= model.last_used + model.idle_timeout:
                decision.unload.append(model.name)
                room.remove(model)
            else:
                decision.recheck(model.last_used + model.idle_timeout)
    waiting = [model for model in models if model.phase == "unloaded" and model.waiting_since is not None]
    for model in sorted(waiting, key=lambda model: (model.waiting_since, model.name)):
        if (shortage := room.shortage(model)) is not None:
            decision.impossible[model.name] = shortage
        elif room.fits_now(model):
            decision.load.append(model.name)
            room.add(model)
        else:
            for victim in room.victims(model, now):
                decision.unload.append(victim.name)
                room.remove(victim)
            if not room.fits_after_unloads(model) and (moment := room.next_evictable_at(now)) is not None:
                decision.recheck(moment)
            room.add(model)  # reserved: models that came later cannot take its memory
    return decision


class _Room:
    """The memory in use now, and after the running unloads."""

    def __init__(self, models: Sequence[Candidate], limits: Limits) -> None:
        self._limits = limits
        self._resident = {model.name: model for model in models if model.phase in ("loaded", "loading")}
        self._unloading = {model.name: model for model in models if model.phase == "unloading"}
        self._pinned = [model for model in models if model.pinned]

    def add(self, model: Candidate) -> None:
        self._resident[model.name] = model

    def remove(self, model: Candidate) -> None:
        self._unloading[model.name] = self._resident.pop(model.name)

    def fits_now(self, model: Candidate) -> bool:
        return self._fits([*self._resident.values(), *self._unloading.values(), model])

    def fits_after_unloads(self, model: Candidate) -> bool:
        return self._fits([*self._resident.values(), model])

    def shortage(self, model: Candidate) -> Shortage | None:
        """Why it does not fit even with only the pinned models loaded, or None."""
        others = [pinned for pinned in self._pinned if pinned.name != model.name and pinned.name in self._resident]
        for device, limit in self._limits.memory.items():
            kept = sum(pinned.needs.get(device, 0) for pinned in others)
            needed = model.needs.get(device, 0)
            if needed and needed + kept > limit:
                return Shortage(device, needed, limit, kept, tuple(sorted(pinned.name for pinned in others)))
        return None

    def victims(self, model: Candidate, now: float) -> list[Candidate]:
        """The fewest models to unload so that it fits; empty if unloading is not enough."""
        evictable = [one for one in self._movable() if not one.busy or now >= one.resident_until]
        evictable.sort(key=lambda one: (one.busy, one.last_used, one.name))
        chosen: list[Candidate] = []
        for one in evictable:
            if self._fits_without(model, chosen):
                break
            chosen.append(one)
        if not self._fits_without(model, chosen):
            return []
        for one in list(chosen):
            without = [other for other in chosen if other is not one]
            if self._fits_without(model, without):
                chosen = without
        return chosen

    def next_evictable_at(self, now: float) -> float | None:
        """When the minimum residence of the next busy model ends."""
        return min(
            (one.resident_until for one in self._movable() if one.busy and one.resident_until > now), default=None
        )

    def _movable(self) -> list[Candidate]:
        return [one for one in self._resident.values() if one.phase == "loaded" and not one.pinned]

    def _fits_without(self, model: Candidate, removed: list[Candidate]) -> bool:
        names = {one.name for one in removed}
        return self._fits([*(one for one in self._resident.values() if one.name not in names), model])

    def _fits(self, models: Sequence[Candidate]) -> bool:
        if self._limits.models is not None and len(models) > max(1, self._limits.models):
            return False
        return all(
            sum(model.needs.get(device, 0) for model in models) <= limit
            for device, limit in self._limits.memory.items()
        )
