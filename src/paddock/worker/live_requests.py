"""The requests that have not ended, and the limit on their number."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from paddock.errors import InvalidRequest, QueueFull
from paddock.scheduling import may_enqueue
from paddock.types import Origin

_REMEMBERED_ENDS = 16


@dataclass(slots=True)
class _Live:
    origin: Origin
    answers: int
    started: int = 0
    finished: int = 0
    start: Callable[[int], None] | None = None
    """Sends the answer with this index to the engine. None while the prompt is being prepared."""

    def start_next(self) -> None:
        if self.start is not None and self.started < self.answers:
            self.started += 1
            self.start(self.started - 1)


class LiveRequests:
    """Not thread-safe, except `in`. `now` is the time of a monotonic clock."""

    def __init__(self) -> None:
        self.n_slots = 1
        self.max_queue = 0
        self._live: dict[int, _Live] = {}
        self._intervals: deque[float] = deque(maxlen=_REMEMBERED_ENDS)
        """Seconds between the ends of the last requests."""
        self._last_end = 0.0
        """When the last request ended, or when the first one arrived after an idle time."""

    def __contains__(self, id: int) -> bool:
        return id in self._live

    def __len__(self) -> int:
        return len(self._live)

    def add(self, id: int, origin: Origin, answers: int, now: float) -> None:
        """Raises `InvalidRequest` for more answers than fit at all, `QueueFull` for more than fit now."""
        limit = self.n_slots + self.max_queue
        if answers > limit:
            raise InvalidRequest(
                f"n is {answers}, but this model has {self.n_slots} slots and a queue of {self.max_queue}", param="n"
            )
        present = [(live.origin.key, live.origin.weight, live.answers - live.finished) for live in self._live.values()]
        if not may_enqueue(origin.key, origin.weight, present, limit, answers):
            total = sum(count for _, _, count in present)
            reason = f"the queue is full: {total} of at most {limit} answers are running or queued"
            if total + answers <= limit:
                reason += ", and this key uses its whole share"
            raise QueueFull(reason, retry_after=self._retry_after())
        if not self._live:
            self._last_end = now
        self._live[id] = _Live(origin, answers)

    def remove(self, id: int) -> bool:
        """Returns whether the request was live."""
        return self._live.pop(id, None) is not None

    def start(self, id: int, start: Callable[[int], None]) -> None:
        """Start as many answers as there are slots; each of the others starts when one ends.

        The engine need not hold a sampler and a queue entry for answers that cannot run yet.
        """
        live = self._live[id]
        live.start = start
        for _ in range(min(live.answers, self.n_slots)):
            live.start_next()

    def end_answer(self, id: int, now: float) -> None:
        live = self._live.get(id)
        if live is None:
            return
        live.finished += 1
        live.start_next()
        if live.finished >= live.answers:
            del self._live[id]
            self._intervals.append(now - self._last_end)
            self._last_end = now

    def _retry_after(self) -> float:
        """Estimated seconds until the next request ends: the mean interval of the last ends."""
        return statistics.fmean(self._intervals) if self._intervals else 1.0
