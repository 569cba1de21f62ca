"""Counters of workers: sums that only grow (`Tally`), and gauges (`Levels`)."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final, get_type_hints

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


@dataclass(frozen=True, slots=True)
class Metric:
    """Annotates a field of `Tally` or `Levels` that `/metrics` exports, once for each worker.

    The gateway derives the metric from it (`gateway/ops/metrics/families.py`). A new metric is such a field, and a line
    in `worker/counters.py` that counts.
    """

    name: str
    section: str
    """The section of `families.py` in which it is listed."""
    help: str
    label: tuple[str, str] | None = None
    """An additional label and its value. The fields of one metric have different values."""


def metrics_of(struct: type[msgspec.Struct]) -> dict[str, Metric]:
    """Field → its metric, in order of declaration."""
    hints = get_type_hints(struct, include_extras=True)
    annotated = ((field, getattr(hints[field], "__metadata__", ())) for field in struct.__struct_fields__)
    return {field: metric for field, metadata in annotated for metric in metadata if isinstance(metric, Metric)}


_prefix_tokens = partial(
    Metric, "paddock_prefix_tokens_total", "Prefixes", "Prompt tokens by source: `reused` or `computed`."
)
_prefix_lookups = partial(
    Metric,
    "paddock_prefix_lookups_total",
    "Prefixes",
    "Requests by whether a prefix of the prompt was cached: `hit` or `miss`.",
)
_sources = (
    "`ngram` (the request's own text), `tree` (another answer after the same tokens), `grammar` (the only tokens that "
    "a schema or grammar allows), `model` (a draft model)."
)
_drafted = partial(Metric, "paddock_drafted_tokens_total", "Steps", f"Guessed tokens by source: {_sources}")
_accepted = partial(
    Metric, "paddock_accepted_tokens_total", "Steps", "Guessed tokens that the model chose too, by the same sources."
)
_copy_rate = partial(
    Metric,
    "paddock_prefix_copy_bytes_per_second",
    "Prefixes",
    "Measured speed of copies: `save` and `restore` between cells and host memory, `disk_write` and `disk_read` "
    "between host memory and disk; 0: not known yet.",
)
_disk_bytes = partial(
    Metric,
    "paddock_disk_cache_bytes_total",
    "Prefixes",
    "Bytes of prefixes that were `read` from disk or `written` to it.",
)
_disk_failures = partial(
    Metric,
    "paddock_disk_cache_failures_total",
    "Prefixes",
    "Spans that could not be read from disk (`read`: missing or damaged), could not be written (`write`), or were "
    "evicted from host memory before they could be written (`lost`).",
)


class Tally(msgspec.Struct, array_like=True):
    """The work of a worker in an interval. Tallies of several intervals or workers can be added."""

    prompt_seconds: float = 0.0
    """Sum over requests: from the first prefill step to the first token."""
    generated_tokens: int = 0
    drafts: int = 0
    """Steps of answers that had guessed tokens, of any source."""
    drafted_ngram: Annotated[int, _drafted(label=("source", "ngram"))] = 0
    drafted_tree: Annotated[int, _drafted(label=("source", "tree"))] = 0
    drafted_grammar: Annotated[int, _drafted(label=("source", "grammar"))] = 0
    drafted_model: Annotated[int, _drafted(label=("source", "model"))] = 0
    accepted_ngram: Annotated[int, _accepted(label=("source", "ngram"))] = 0
    accepted_tree: Annotated[int, _accepted(label=("source", "tree"))] = 0
    accepted_grammar: Annotated[int, _accepted(label=("source", "grammar"))] = 0
    accepted_model: Annotated[int, _accepted(label=("source", "model"))] = 0
    queue_seconds: Annotated[
        Histogram, Metric("paddock_queue_seconds", "Steps", "Time from the acceptance of a request to its first step.")
    ] = msgspec.field(default_factory=_waits)
    inter_token_seconds: Annotated[
        Histogram,
        Metric(
            "paddock_inter_token_seconds", "Steps", "Time between two tokens of an answer. Tokens of one step share it."
        ),
    ] = msgspec.field(default_factory=_moments)
    step_seconds: Annotated[
        Histogram,
        Metric("paddock_step_duration_seconds", "Steps", "Time of a step, including the wait for the CPU lock."),
    ] = msgspec.field(default_factory=_moments)
    step_sequences: Annotated[Histogram, Metric("paddock_step_sequences", "Steps", "Requests that shared a step.")] = (
        msgspec.field(default_factory=_sizes)
    )
    """Requests, or inputs of embedding requests."""
    step_tokens: Annotated[
        Histogram, Metric("paddock_step_tokens", "Steps", "Tokens in a step: of prompts, of answers and guessed.")
    ] = msgspec.field(default_factory=_sizes)
    preemptions: Annotated[
        int, Metric("paddock_preemptions_total", "Steps", "Requests that were preempted because the cache was full.")
    ] = 0
    cached_tokens: Annotated[int, _prefix_tokens(label=("source", "reused"))] = 0
    """Prompt tokens from the cache."""
    prompt_tokens: Annotated[int, _prefix_tokens(label=("source", "computed"))] = 0
    """Computed prompt tokens, counted again after a preemption."""
    cache_hits: Annotated[int, _prefix_lookups(label=("result", "hit"))] = 0
    cache_misses: Annotated[int, _prefix_lookups(label=("result", "miss"))] = 0
    evictions: Annotated[
        int, Metric("paddock_prefix_evictions_total", "Prefixes", "Prefixes evicted from host memory.")
    ] = 0
    disk_read_bytes: Annotated[int, _disk_bytes(label=("direction", "read"))] = 0
    disk_written_bytes: Annotated[int, _disk_bytes(label=("direction", "written"))] = 0
    disk_tokens: Annotated[
        int,
        Metric(
            "paddock_disk_cache_tokens_total", "Prefixes", "Prompt tokens that were read from disk instead of computed."
        ),
    ] = 0
    disk_failed_reads: Annotated[int, _disk_failures(label=("kind", "read"))] = 0
    disk_failed_writes: Annotated[int, _disk_failures(label=("kind", "write"))] = 0
    disk_lost: Annotated[int, _disk_failures(label=("kind", "lost"))] = 0
    cpu_seconds: Annotated[float, Metric("paddock_worker_cpu_seconds_total", "Models", "CPU time of the workers.")] = (
        0.0
    )
    """CPU time of the whole process."""
    encode_seconds: Annotated[
        Histogram,
        Metric(
            "paddock_media_encode_seconds",
            "Steps",
            "Time to encode an image, a part of one, or audio. Running answers wait meanwhile. What is cached is not "
            "encoded.",
        ),
    ] = msgspec.field(default_factory=_waits)

    @property
    def drafted_tokens(self) -> int:
        """Guessed tokens of all sources."""
        return self.drafted_ngram + self.drafted_tree + self.drafted_grammar + self.drafted_model

    @property
    def accepted_tokens(self) -> int:
        """Those of them that the model chose too."""
        return self.accepted_ngram + self.accepted_tree + self.accepted_grammar + self.accepted_model

    def count_draft(self, source: str, drafted: int, accepted: int) -> None:
        """An answer had guessed tokens of this source (`DraftSource`) in a step."""
        self.drafts += 1
        for name, count in ((f"drafted_{source}", drafted), (f"accepted_{source}", accepted)):
            setattr(self, name, getattr(self, name) + count)

    def add(self, other: Tally) -> None:
        for name in self.__struct_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, Histogram):
                mine.add(theirs)
            else:
                setattr(self, name, mine + theirs)


class Levels(msgspec.Struct, frozen=True, array_like=True):
    """Gauges of a worker after its last step."""

    running: Annotated[int, Metric("paddock_running_requests", "Steps", "Requests in a slot, after the last step.")] = 0
    queued: Annotated[
        int, Metric("paddock_queued_requests", "Steps", "Requests without a slot, after the last step.")
    ] = 0
    stored_bytes: Annotated[int, Metric("paddock_prefix_memory_bytes", "Prefixes", "Host memory used by prefixes.")] = 0
    stored_tokens: Annotated[
        int, Metric("paddock_prefix_memory_tokens", "Prefixes", "Tokens of the prefixes in host memory.")
    ] = 0
    cells: Annotated[int, Metric("paddock_cache_cells", "Prefixes", "Cells of the cache.")] = 0
    cells_used: Annotated[int, Metric("paddock_cache_cells_used", "Prefixes", "Cells of running requests.")] = 0
    cells_idle: Annotated[
        int, Metric("paddock_cache_cells_idle", "Prefixes", "Cells that only finished requests have, for reuse.")
    ] = 0
    prefill_token_seconds: Annotated[
        float,
        Metric(
            "paddock_prefill_token_seconds", "Prefixes", "Measured time to compute one prompt token; 0: not known yet."
        ),
    ] = 0.0
    save_rate: Annotated[float, _copy_rate(label=("copy", "save"))] = 0.0
    restore_rate: Annotated[float, _copy_rate(label=("copy", "restore"))] = 0.0
    disk_write_rate: Annotated[float, _copy_rate(label=("copy", "disk_write"))] = 0.0
    disk_read_rate: Annotated[float, _copy_rate(label=("copy", "disk_read"))] = 0.0
    token_bytes: Annotated[
        int,
        Metric(
            "paddock_prefix_token_bytes",
            "Prefixes",
            "Bytes of one token in a copy; 0: a state is copied as a whole or not at all.",
        ),
    ] = 0
    disk_bytes: Annotated[
        int,
        Metric("paddock_disk_cache_bytes", "Prefixes", "Bytes of the model's prefixes on disk, as this worker knows."),
    ] = 0
    disk_files: Annotated[
        int,
        Metric("paddock_disk_cache_files", "Prefixes", "Files of the model's prefixes on disk, as this worker knows."),
    ] = 0
    disk_pays: Annotated[
        int,
        Metric(
            "paddock_disk_cache_pays",
            "Prefixes",
            "1 if prefixes are read from disk faster than computed, or that is not measured yet. 0: none are written.",
        ),
    ] = 0
    longest: int = 0
    """The most tokens of any sequence so far."""
