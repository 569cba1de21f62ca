"""What the runner knows about a batch that has not ended, and the options of all batches."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from paddock.batches.decisions import MayLoad
from paddock.batches.parts import Parts
from paddock.batches.records import Batch, Mistake, Result, TokenUsage
from paddock.types.windows import Window


@dataclass(frozen=True, slots=True)
class Options:
    may_load: MayLoad = "when_idle"
    windows: tuple[Window, ...] = ()
    in_flight: int | None = None
    attempts: int = 3
    allow_change: bool = False
    longest_body: int = 32 * 1024 * 1024
    most_waiting: int = 1_000_000
    """Lines of one owner that are not answered."""


@dataclass(slots=True)
class Counts:
    """Since the start of the server, by model."""

    done: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, TokenUsage] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Active:
    """A batch that has not ended."""

    batch: Batch
    running: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    """By the number of the line, until its result is committed."""
    results: list[Result] = field(default_factory=list)
    """Not yet committed."""
    parts: Parts | None = None
    """The lines that wait; None before the first is started."""
    not_before: float = 0.0
    waiting_for: str | None = None
    warned: bool = False
    checked_at: float = 0.0
    """When the files of the model were looked at."""
    stop: list[Mistake] = field(default_factory=list)
