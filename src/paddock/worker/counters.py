"""What the engine thread did, counted in passing: a few additions for each step, whatever it holds."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from paddock.scheduling import Plan, Request, Scheduler
from paddock.tally import Levels, Tally
from paddock.types import Sampled
from paddock.wire import Stats

_INTERVAL = 1.0


class Counters:
    """Filled by the engine thread. What has come together is taken out once a second, and whenever it comes to rest."""

    def __init__(self) -> None:
        self._tally = Tally()
        self._taking = threading.Lock()
        self._told_at = 0.0
        self._changed = False
        self._evicted = self._preempted = self._longest = 0
        self._cpu = 0.0

    def began(self, request: Request, waited: float) -> None:
        """The first step of a request that waited so long for it."""
        tally = self._tally
        tally.queue_seconds.observe(waited)
        tally.cached_tokens += request.cached
        if request.cached:
            tally.cache_hits += 1
        else:
            tally.cache_misses += 1

    def step(self, plan: Plan, seconds: float) -> None:
        tokens = sum(len(span.tokens) for span in plan.spans)
        self._longest = max(self._longest, *(span.start + len(span.tokens) for span in plan.spans))
        if len(plan.spans) > plan.decodes:
            self._tally.prompt_tokens += sum(
                min(len(span.tokens), max(request.prompt_size - span.start, 0))
                for span, request in zip(plan.spans, plan.requests, strict=True)
            )
        self._stepped(len(plan.spans), tokens, seconds)

    def drafts(self, results: Sequence[Sampled | None]) -> None:
        """What was guessed ahead in a step, and how much of it was right."""
        for result in results:
            if result is not None and result.drafted:
                self._tally.drafts += 1
                self._tally.drafted_tokens += result.drafted
                self._tally.accepted_tokens += len(result.more)

    def pooled_step(self, inputs: int, tokens: int, seconds: float) -> None:
        self._tally.prompt_tokens += tokens
        self._tally.prompt_seconds += seconds
        self._stepped(inputs, tokens, seconds)

    def tidied(self) -> None:
        """Something was done with the cache alone."""
        self._changed = True

    def tokens(self, previous: Mapping[float | None, int], now: float) -> None:
        """So many tokens came, by when the ones before them did; None: they are the first of their answers."""
        for moment, count in previous.items():
            self._tally.generated_tokens += count
            if moment is not None:
                self._tally.inter_token_seconds.observe(now - moment, count)

    def read(self, seconds: float) -> None:
        """A prompt was read, in so long a time."""
        self._tally.prompt_seconds += seconds

    def due(self, now: float, *, idle: bool = False) -> bool:
        """Whether somebody ought to be told by now."""
        return self._changed and (idle or now >= self._told_at + _INTERVAL)

    def stats(self, scheduler: Scheduler, now: float) -> Stats:
        cache = scheduler.cache
        self._tally.evictions += cache.evicted - self._evicted
        self._tally.preemptions += scheduler.preemptions - self._preempted
        self._evicted, self._preempted = cache.evicted, scheduler.preemptions
        return self._told(
            now,
            Levels(
                running=scheduler.running,
                queued=scheduler.queued,
                cells=scheduler.cells,
                cells_used=scheduler.cells - cache.free,
                stored_tokens=cache.stored,
                stored_bytes=cache.stored_bytes,
                longest=self._longest,
            ),
        )

    def pooled_stats(self, queued: int, now: float) -> Stats:
        return self._told(now, Levels(queued=queued))

    def last(self) -> Stats:
        """What has not been told yet, for whoever ends the process. The one call that another thread may make."""
        return Stats(self._take())

    def _told(self, now: float, levels: Levels) -> Stats:
        self._told_at, self._changed = now, False
        return Stats(self._take(), levels)

    def _stepped(self, sequences: int, tokens: int, seconds: float) -> None:
        tally = self._tally
        tally.step_seconds.observe(seconds)
        tally.step_sequences.observe(sequences)
        tally.step_tokens.observe(tokens)
        self._changed = True

    def _take(self) -> Tally:
        with self._taking:
            tally, self._tally = self._tally, Tally()
            before, self._cpu = self._cpu, time.process_time()
        tally.cpu_seconds += self._cpu - before
        return tally
