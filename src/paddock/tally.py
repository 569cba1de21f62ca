"""What workers count, and both sides can add up: sums that only grow, and how things stand."""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from typing import Final

import msgspec

MOMENTS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds, in seconds, for what happens with every token: a small model on a GPU and a large one on a CPU."""
WAITS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Bounds, in seconds, for what happens once in a request."""
SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


class Histogram(msgspec.Struct, array_like=True):
    """How many values there were, by size, and their sum."""

    bounds: tuple[float, ...]
    counts: list[int]
    """How many were at most as large as each bound, and larger than the one before; then those larger than all."""
    sum: float = 0.0

    @classmethod
    def of(cls, bounds: tuple[float, ...]) -> Histogram:
        return cls(bounds, [0] * (len(bounds) + 1))

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def copy(self) -> Histogram:
        return Histogram(self.bounds, list(self.counts), self.sum)

    def add(self, other: Histogram) -> None:
        assert self.bounds == other.bounds, "histograms of different things cannot be added"
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum


_moments = partial(Histogram.of, MOMENTS)
_waits = partial(Histogram.of, WAITS)
_sizes = partial(Histogram.of, SIZES)


class Tally(msgspec.Struct, array_like=True):
    """What a worker did in some time. What several did, or one did in several times, can be added."""

    prompt_tokens: int = 0
    """Computed, again where a request had to step back."""
    prompt_seconds: float = 0.0
    """From a request's first step with a part of its prompt to its first token, added up."""
    generated_tokens: int = 0
    cached_tokens: int = 0
    """Of prompts, that need not be computed."""
    cache_hits: int = 0
    """Requests that found a beginning of their prompt."""
    cache_misses: int = 0
    evictions: int = 0
    preemptions: int = 0
    cpu_seconds: float = 0.0
    """Of the whole process."""
    queue_seconds: Histogram = msgspec.field(default_factory=_waits)
    """From when a request was accepted to its first step."""
    inter_token_seconds: Histogram = msgspec.field(default_factory=_moments)
    step_seconds: Histogram = msgspec.field(default_factory=_moments)
    step_sequences: Histogram = msgspec.field(default_factory=_sizes)
    """How many requests, or inputs, shared a step."""
    step_tokens: Histogram = msgspec.field(default_factory=_sizes)
    drafts: int = 0
    """How often an answer was guessed ahead."""
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    """Of those, that were guessed right."""

    def add(self, other: Tally) -> None:
        for name in self.__struct_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, Histogram):
                mine.add(theirs)
            else:
                setattr(self, name, mine + theirs)


class Levels(msgspec.Struct, frozen=True, array_like=True):
    """How things stand in a worker, after its last step."""

    running: int = 0
    queued: int = 0
    cells: int = 0
    cells_used: int = 0
    stored_tokens: int = 0
    """In host memory, for those who come later."""
    stored_bytes: int = 0
    longest: int = 0
    """The most tokens that a sequence has had so far."""
