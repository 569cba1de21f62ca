"""Counts the work of the engine thread: a few additions for each step, independent of its size."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from paddock.scheduling import DiskCounts, Plan, Request, Scheduler
from paddock.tally import Levels, Tally
from paddock.types import Sampled
from paddock.wire.messages import Stats

_INTERVAL = 1.0


class Counters:
    """The engine thread counts, and takes the counts out once a second and when it becomes idle.

    A new metric is a field in `tally.py` and a line here that changes it.
    """

    def __init__(self) -> None:
        self._tally = Tally()
        self._take_lock = threading.Lock()
        self._sent_at = 0.0
        self._changed = False
        self._evicted = self._preempted = self.longest = 0
        self._cpu = 0.0

    def started(self, request: Request, waited: float) -> None:
        """A request has its first step after it waited for `waited` seconds."""
        tally = self._tally
        tally.queue_seconds.observe(waited)
        tally.cached_tokens += request.cached
        if request.cached:
            tally.cache_hits += 1
        else:
            tally.cache_misses += 1

    def step(self, plan: Plan, seconds: float) -> None:
        tokens = sum(len(span.tokens) + len(span.draft) for span in plan.spans)
        self.longest = max(self.longest, *(span.start + len(span.tokens) for span in plan.spans))
        if len(plan.spans) > plan.decodes:
            self._tally.prompt_tokens += sum(
                min(len(span.tokens), max(request.prompt_size - span.start, 0))
                for span, request in zip(plan.spans, plan.requests, strict=True)
            )
        self._count_step(len(plan.spans), tokens, seconds)

    def drafts(self, plan: Plan, results: Sequence[Sampled | None]) -> None:
        """The results of a step: None where no token was sampled, or nobody wants it any more."""
        for span, result in zip(plan.spans, results, strict=True):
            if result is not None and result.more:
                self.longest = max(self.longest, span.start + len(span.tokens) + len(result.more))
            if result is not None and result.drafted and result.draft_source is not None:
                self._tally.count_draft(result.draft_source, result.drafted, len(result.more))

    def encoded(self, seconds: Sequence[float]) -> None:
        """Images and sound were encoded, each in so many seconds."""
        for each in seconds:
            self._tally.encode_seconds.observe(each)

    def pooled_step(self, inputs: int, tokens: int, seconds: float) -> None:
        self._tally.prompt_tokens += tokens
        self._tally.prompt_seconds += seconds
        self._count_step(inputs, tokens, seconds)

    def cache_changed(self) -> None:
        """A plan had cache operations only."""
        self._changed = True

    def tokens(self, arrived: Mapping[tuple[float | None, int], int], now: float) -> None:
        """New tokens of answers: the time of the token before them (None: they are the first) and how many they are →
        the number of such answers. Tokens that came together took the same time each: otherwise most of an answer with
        guesses would seem to take none, and the rest of it too long.
        """
        for (moment, count), answers in arrived.items():
            self._tally.generated_tokens += count * answers
            if moment is not None:
                self._tally.inter_token_seconds.observe((now - moment) / count, count * answers)
            elif count > 1:
                self._tally.inter_token_seconds.observe(0.0, (count - 1) * answers)

    def prompt_done(self, seconds: float) -> None:
        self._tally.prompt_seconds += seconds

    def are_due(self, now: float, *, is_idle: bool = False) -> bool:
        """Whether it is time to send them."""
        return self._changed and (is_idle or now >= self._sent_at + _INTERVAL)

    def stats(self, scheduler: Scheduler, now: float) -> Stats:
        cache, prices = scheduler.cache, scheduler.prices
        self._tally.evictions += cache.evicted - self._evicted
        self._tally.preemptions += scheduler.preemptions - self._preempted
        self._evicted, self._preempted = cache.evicted, scheduler.preemptions
        disk = scheduler.disk
        if disk is not None:
            self._count_disk(disk.take_counts())
        return self._sent(
            now,
            Levels(
                running=scheduler.running,
                queued=scheduler.queued,
                cells=scheduler.cells,
                cells_used=cache.used - cache.idle_cells,
                cells_idle=cache.idle_cells,
                stored_tokens=cache.stored,
                stored_bytes=cache.stored_bytes,
                prefill_token_seconds=prices.prefill.per_unit,
                save_rate=prices.save.per_second,
                restore_rate=prices.restore.per_second,
                disk_write_rate=prices.disk_write.per_second,
                disk_read_rate=prices.disk_read.per_second,
                token_bytes=scheduler.bytes_per_token,
                disk_bytes=0 if disk is None else disk.bytes,
                disk_files=0 if disk is None else disk.files,
                disk_pays=int(disk is not None and disk.pays),
                longest=self.longest,
            ),
        )

    def _count_disk(self, counts: DiskCounts) -> None:
        tally = self._tally
        tally.disk_read_bytes += counts.read_bytes
        tally.disk_written_bytes += counts.written_bytes
        tally.disk_tokens += counts.tokens
        tally.disk_failed_reads += counts.failed_reads
        tally.disk_failed_writes += counts.failed_writes
        tally.disk_lost += counts.lost

    def pooled_stats(self, queued: int, now: float) -> Stats:
        return self._sent(now, Levels(queued=queued))

    def last(self) -> Stats:
        """The counts that were not sent, before the process exits. The only method that other threads may call."""
        return Stats(self._take())

    def _sent(self, now: float, levels: Levels) -> Stats:
        self._sent_at, self._changed = now, False
        return Stats(self._take(), levels)

    def _count_step(self, sequences: int, tokens: int, seconds: float) -> None:
        tally = self._tally
        tally.step_seconds.observe(seconds)
        tally.step_sequences.observe(sequences)
        tally.step_tokens.observe(tokens)
        self._changed = True

    def _take(self) -> Tally:
        with self._take_lock:
            tally, self._tally = self._tally, Tally()
            before, self._cpu = self._cpu, time.process_time()
        tally.cpu_seconds += self._cpu - before
        return tally
