"""Which lines to start, and what follows from a reply. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

MayLoad = Literal["never", "when_idle", "always"]

_LATER: Final = frozenset(
    {
        "rate_limit_exceeded",
        "queue_full",
        "buffers_full",
        "server_stopping",
        "model_loading",
        "model_not_loaded",
        "model_unloaded",
        "model_load_failed",
        "model_crashing",
        "insufficient_memory",
        "out_of_memory",
        "library_unusable",
        "illegal_instruction",
        "unavailable",
        "no_replica",
        "permission_denied",
        "receipt_unavailable",
        "model_not_found",
        "invalid_api_key",
    }
)
"""Errors that say nothing about the line: it is run again when the server can."""
_CRASHES: Final = frozenset({"worker_crashed", "replica_lost", "decode_failed", "no_cells", "internal_error"})
"""Errors that the line may have caused: it is run again a few times."""


@dataclass(frozen=True, slots=True)
class ModelView:
    """What the runner knows about a model."""

    served: bool = True
    loaded: bool = True
    slots: int = 1
    """Of all its replicas."""
    replicas: int = 1
    others_wait: bool = False
    """Requests for another model wait until it is loaded."""
    others_busy: bool = False
    """Another model is in use, or was until a moment ago."""


@dataclass(frozen=True, slots=True)
class Start:
    """So many lines of this model may run."""

    most: int
    load: bool = False
    """The first of them loads the model."""
    replicas: int = 1
    """They are distributed over so many."""


@dataclass(frozen=True, slots=True)
class Wait:
    reason: str


def decide(
    view: ModelView, name: str, *, policy: MayLoad, in_window: bool, in_flight: int | None, packed: bool = False
) -> Start | Wait:
    """`in_flight` is the setting; None: chosen by the number of slots. `packed`: lines are computed many at a time."""
    if not view.served:
        return Wait(f"the model {name!r} is not served")
    if not in_window:
        return Wait("batches run at other times of the day (batches.windows)")
    if view.others_wait:
        return Wait("requests wait for another model to be loaded")
    if not view.loaded:
        if policy == "never":
            return Wait(f"the model {name!r} is not loaded, and batches do not load models (batches.may_load)")
        if policy == "when_idle" and view.others_busy:
            return Wait(f"the model {name!r} is not loaded, and another model is in use (batches.may_load)")
        return Start(1, load=True)
    if in_flight is not None:
        return Start(in_flight, replicas=view.replicas)
    # Answers of equal length end together. So that no slot waits for the next line, there is one more for each of them.
    slots = max(1, view.slots)
    most = max(32, slots) if packed else max(2 * slots, slots + 2)
    return Start(most, replicas=view.replicas)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A batch with lines to start."""

    id: str
    owner: str
    running: int


def next_batch(candidates: Iterable[Candidate]) -> Candidate | None:
    """The batch whose line is started next: each owner's oldest batch, and of these the one with the fewest running
    lines. `candidates` are batches of one model, the oldest first.
    """
    first: dict[str, Candidate] = {}
    for candidate in candidates:
        first.setdefault(candidate.owner, candidate)
    return min(first.values(), key=lambda one: one.running, default=None)


Outcome = Literal["done", "failed", "later", "again"]


def outcome_of(status: int, code: str | None, attempts: int, most_attempts: int) -> Outcome:
    """What follows from a reply. `attempts` counts those that a crash ended, without this one."""
    if 200 <= status < 300:
        return "done"
    if code in _LATER:
        return "later"
    if status == 0 or code in _CRASHES:
        return "again" if attempts + 1 < most_attempts else "failed"
    return "failed"
