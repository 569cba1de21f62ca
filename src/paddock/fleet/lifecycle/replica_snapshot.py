"""A replica as the live view shows it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from paddock.fleet.lifecycle.model_state import ModelStatus
from paddock.fleet.lifecycle.records import ModelRecord
from paddock.replicas.replica import ReplicaStatus
from paddock.types import SlotView

ReplicaState = Literal["unloaded", "loading", "ready", "down"]


@dataclass(frozen=True, slots=True)
class ReplicaSnapshot:
    status: ReplicaStatus
    state: ReplicaState
    reason: str
    """Why it is down; empty if it does not answer, or is not down."""
    progress: float | None
    """The progress of a local worker's load, from 0 to 1."""
    running: int
    waiting: int
    slots: int
    """0: unknown."""
    prompt_tokens: int | None
    """Prompt tokens that it computed; None: unknown."""
    cached_tokens: int | None
    """Prompt tokens that it took from its cache; None: unknown."""
    answered_tokens: int


def replica_snapshot(
    status: ReplicaStatus, worker: ModelStatus | None = None, record: ModelRecord | None = None
) -> ReplicaSnapshot:
    """`worker` and `record` are of its local worker; a replica elsewhere has none."""
    state = _state(status, worker)
    load = status.load
    running = min(load.running, load.slots) if load.slots else load.running
    tally = record.tally if record is not None else None
    return ReplicaSnapshot(
        status,
        state,
        status.failure if state == "down" else "",
        worker.progress if worker is not None and state == "loading" else None,
        running,
        load.waiting + load.running - running,
        load.slots,
        tally.prompt_tokens if tally is not None else _number(status, "llamacpp:prompt_tokens_total"),
        tally.cached_tokens if tally is not None else _number(status, "llamacpp:prompt_tokens_cached_total"),
        tally.generated_tokens if tally is not None else status.tokens,
    )


def _state(status: ReplicaStatus, worker: ModelStatus | None) -> ReplicaState:
    if worker is not None:
        if worker.state == "unloaded":
            return "down" if worker.failure else "unloaded"
        return "loading" if worker.state == "loading" else "ready"
    # A failure without a failed request: its properties cannot be read, so it is not used.
    unusable = status.retry_after > 0 or (status.failure != "" and not status.failures)
    if status.health == "down" or unusable:
        return "down"
    return "ready" if status.health == "ready" else "loading"


def _number(status: ReplicaStatus, name: str) -> int | None:
    found = status.scraped.get(name)
    return None if found is None else int(found)


def renumbered(groups: Iterable[list[SlotView]]) -> list[SlotView]:
    """The slots of several workers, with different ids. The first worker's keep theirs."""
    slots = [slot for group in groups for slot in group]
    return [msgspec.structs.replace(slot, id=number) for number, slot in enumerate(slots)]
