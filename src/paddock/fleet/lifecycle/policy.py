"""Who comes, who leaves, who waits: decisions about models from what is known of them. No clock, no process.

A model that is asked for and not there waits. The one that has waited longest is helped first, and nobody who came
later may take the room that it needs. To make room, models that nobody uses leave, the least recently used first; one
in use leaves only when it has stayed for as long as it may, and then takes no new requests and finishes those it has.
So requests gather for a model while it is out, and once it is in it serves them for a while: no thrash, no starvation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Device = str
Bytes = Mapping[Device, int]
"""How much of each device's memory."""

Phase = Literal["out", "loading", "in", "leaving"]


@dataclass(frozen=True, slots=True)
class Standing:
    """One model as it stands."""

    name: str
    needs: Bytes
    """What it takes, or would take."""
    phase: Phase = "out"
    busy: bool = False
    """Somebody uses it, or is about to."""
    stays_until: float = 0.0
    """Until then nobody makes it leave who is in use."""
    last_used: float = 0.0
    idle_timeout: float = 0.0
    """It leaves when nobody has used it for so many seconds; 0: never."""
    pinned: bool = False
    waited_for_since: float | None = None
    """Since when the oldest request waits for it to be there; None: nobody does."""


@dataclass(frozen=True, slots=True)
class Limits:
    memory: Bytes = field(default_factory=dict)
    """The most that all models together may take; a device that is not named has no limit."""
    models: int | None = None
    """How many models may be there at once."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why a model can never be there as things are: the memory it needs, has at most, and who keeps the rest."""

    device: Device
    needed: int
    limit: int
    pinned: int
    """What models take that never leave."""
    keeping: tuple[str, ...] = ()


@dataclass(slots=True)
class Decision:
    load: list[str] = field(default_factory=list)
    leave: list[str] = field(default_factory=list)
    impossible: dict[str, Shortage] = field(default_factory=dict)
    look_again_at: float | None = None
    """When something will have changed by itself."""

    def look_again(self, moment: float) -> None:
        self.look_again_at = moment if self.look_again_at is None else min(self.look_again_at, moment)


def decide(models: Sequence[Standing], limits: Limits, now: float) -> Decision:
    """What to do now. Acting on it and asking again leads to nothing new until something else happens."""
    decision = Decision()
    room = _Room(models, limits)
    for model in models:
        if model.phase == "in" and not model.busy and not model.pinned and model.idle_timeout > 0:
            if now >= model.last_used + model.idle_timeout:
                decision.leave.append(model.name)
                room.leaves(model)
            else:
                decision.look_again(model.last_used + model.idle_timeout)
    waiting = [model for model in models if model.phase == "out" and model.waited_for_since is not None]
    for model in sorted(waiting, key=lambda model: (model.waited_for_since, model.name)):
        if (shortage := room.shortage(model)) is not None:
            decision.impossible[model.name] = shortage
        elif room.fits_now(model):
            decision.load.append(model.name)
            room.takes(model)
        else:
            for victim in room.victims(model, now):
                decision.leave.append(victim.name)
                room.leaves(victim)
            if not room.will_fit(model) and (moment := room.next_to_be_free(now)) is not None:
                decision.look_again(moment)
            # Kept for it: whoever came later is not to have it.
            room.takes(model)
    return decision


class _Room:
    """What is taken, and what will be when those are gone who are on their way out."""

    def __init__(self, models: Sequence[Standing], limits: Limits) -> None:
        self._limits = limits
        self._there = {model.name: model for model in models if model.phase in ("in", "loading")}
        self._leaving = {model.name: model for model in models if model.phase == "leaving"}
        self._pinned = [model for model in models if model.pinned]

    def takes(self, model: Standing) -> None:
        self._there[model.name] = model

    def leaves(self, model: Standing) -> None:
        self._leaving[model.name] = self._there.pop(model.name)

    def fits_now(self, model: Standing) -> bool:
        return self._fits([*self._there.values(), *self._leaving.values(), model])

    def will_fit(self, model: Standing) -> bool:
        return self._fits([*self._there.values(), model])

    def shortage(self, model: Standing) -> Shortage | None:
        """Whether it could not be there even if all left who ever do."""
        others = [pinned for pinned in self._pinned if pinned.name != model.name and pinned.name in self._there]
        for device, limit in self._limits.memory.items():
            kept = sum(pinned.needs.get(device, 0) for pinned in others)
            needed = model.needs.get(device, 0)
            if needed and needed + kept > limit:
                return Shortage(device, needed, limit, kept, tuple(sorted(pinned.name for pinned in others)))
        return None

    def victims(self, model: Standing, now: float) -> list[Standing]:
        """Who must leave so that it fits, as few as will do; nobody where that would not be enough."""
        able = [one for one in self._movable() if not one.busy or now >= one.stays_until]
        able.sort(key=lambda one: (one.busy, one.last_used, one.name))
        chosen: list[Standing] = []
        for one in able:
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

    def next_to_be_free(self, now: float) -> float | None:
        """When the next one of those in use has stayed for as long as it may."""
        return min((one.stays_until for one in self._movable() if one.busy and one.stays_until > now), default=None)

    def _movable(self) -> list[Standing]:
        return [one for one in self._there.values() if one.phase == "in" and not one.pinned]

    def _fits_without(self, model: Standing, gone: list[Standing]) -> bool:
        names = {one.name for one in gone}
        return self._fits([*(one for one in self._there.values() if one.name not in names), model])

    def _fits(self, models: Sequence[Standing]) -> bool:
        if self._limits.models is not None and len(models) > max(1, self._limits.models):
            return False
        return all(
            sum(model.needs.get(device, 0) for model in models) <= limit
            for device, limit in self._limits.memory.items()
        )
