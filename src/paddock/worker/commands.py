"""Commands to the engine thread, and the events that it posts to the I/O thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paddock.errors import PaddockError
from paddock.scheduling import Job, Request, Scheduler
from paddock.wire.messages import Delta
from paddock.worker.cache_reports import Explanation

# ── commands ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True, frozen=True)
class Add:
    request: Request | Job


@dataclass(slots=True, frozen=True)
class Remove:
    id: int
    index: int | None = None
    """The answer to remove. None: all answers of the request."""


@dataclass(slots=True, frozen=True)
class Report:
    """Send the state of the slots."""

    id: int


@dataclass(slots=True, frozen=True)
class Visit:
    """Call a short function with the cache between two steps: before the next step, or when this slot is free."""

    slot: int | None
    run: Callable[[Scheduler], None]


@dataclass(slots=True, frozen=True)
class Resize:
    """Set the host memory limit for prefixes."""

    ram_bytes: int


@dataclass(slots=True, frozen=True)
class Call:
    """Call a short function before the next step: a file was read or written."""

    run: Callable[[], None]


@dataclass(slots=True, frozen=True)
class Flush:
    """End all requests, write what is worth keeping to disk for at most so many seconds, and post `Flushed`."""

    seconds: float


@dataclass(slots=True, frozen=True)
class ReportCache:
    """Send what is cached for each tenant."""

    id: int


@dataclass(slots=True, frozen=True)
class ClearCache:
    """Drop what is cached and not in use, of one tenant or of all (None). Then send what is left."""

    id: int
    tenant: str | None


Command = Add | Remove | Report | Visit | Resize | Call | Flush | ReportCache | ClearCache

# ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True, frozen=True)
class Opening:
    progress: float


@dataclass(slots=True, frozen=True)
class Opened:
    """The engine is open and takes requests."""


@dataclass(slots=True, frozen=True)
class Begun:
    """The first prefill step of a request begins."""

    explanation: Explanation


@dataclass(slots=True, frozen=True)
class Explained:
    """The last delta of an answer that has to be sent with a cache report."""

    delta: Delta
    explanation: Explanation


@dataclass(slots=True, frozen=True)
class Ended:
    """An answer is complete and sent."""

    id: int
    index: int
    explanation: Explanation | None = None


@dataclass(slots=True, frozen=True)
class Failed:
    """A request has failed. Nothing more is sent for it."""

    id: int
    error: PaddockError


@dataclass(slots=True, frozen=True)
class Died:
    """The engine is no longer usable. The worker reports the error and exits."""

    error: PaddockError


@dataclass(slots=True, frozen=True)
class Flushed:
    """Everything that is worth keeping is on disk, or the time for that is over."""


Event = Opening | Opened | Begun | Explained | Ended | Failed | Died | Flushed
