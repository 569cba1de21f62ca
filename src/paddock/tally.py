"""Counters of workers: sums that only grow (`Tally`), and gauges (`Levels`)."""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from typing import Final

import msgspec

MOMENTS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bucket bounds, in seconds, of times per token, for small models on a GPU to large ones on a CPU."""
WAITS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Bucket bounds, in seconds, of times per request."""
SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


class Histogram(msgspec.Struct, array_like=True):
    """Counts of values by bucket, and their sum."""

    bounds: tuple[float, ...]
    counts: list[int]
    """Values up to each bound and above the one before; the last count is of values above all bounds."""
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
        assert self.bounds == other.bounds, "histograms with different bounds cannot be added"
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum


_moments = partial(Histogram.of, MOMENTS)
_waits = partial(Histogram.of, WAITS)
_sizes = partial(Histogram.of, SIZES)


class Tally(msgspec.Struct, array_like=True):
    """The work of a worker in an interval. Tallies of several intervals or workers can be added."""

    prompt_tokens: int = 0
    """Computed prompt tokens, counted again after a preemption."""
    prompt_seconds: float = 0.0
    """Sum over requests: from the first prefill step to the first token."""
    generated_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens from the cache."""
    cache_hits: int = 0
    """Requests whose prompt had a cached prefix."""
    cache_misses: int = 0
    evictions: int = 0
    preemptions: int = 0
    cpu_seconds: float = 0.0
    """CPU time of the whole process."""
    queue_seconds: Histogram = msgspec.field(default_factory=_waits)
    """From the acceptance of a request to its first step."""
    inter_token_seconds: Histogram = msgspec.field(default_factory=_moments)
    step_seconds: Histogram = msgspec.field(default_factory=_moments)
    step_sequences: Histogram = msgspec.field(default_factory=_sizes)
    """Requests, or inputs, per step."""
    step_tokens: Histogram = msgspec.field(default_factory=_sizes)
    drafts: int = 0
    """Drafts of the draft model."""
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    """Draft tokens that the model accepted."""

    def add(self, other: Tally) -> None:
        for name in self.__struct_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, Histogram):
                mine.add(theirs)
            else:
                setattr(self, name, mine + theirs)


class Levels(msgspec.Struct, frozen=True, array_like=True):
    """Gauges of a worker after its last step."""

    running: int = 0
    queued: int = 0
    cells: int = 0
    cells_used: int = 0
    stored_tokens: int = 0
    """Cached tokens in host memory."""
    stored_bytes: int = 0
    longest: int = 0
    """The most tokens of any sequence so far."""
