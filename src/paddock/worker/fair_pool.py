"""Threads for jobs that cannot be cut. Keys take turns, and none has all of the threads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from paddock.scheduling import FairQueue
from paddock.types import Origin


@dataclass(slots=True, eq=False)
class _Job:
    key: str
    weight: float
    batch: bool
    arrival: int
    do: Callable[[], object]


class FairPool:
    """`per_key` jobs of one key run at once, at most; the next is of the key for which the fewest were done."""

    def __init__(self, name: str, threads: int, per_key: int) -> None:
        self._per_key = per_key
        self._changed = threading.Condition()
        self._queue: FairQueue[_Job] = FairQueue()
        self._running: Counter[str] = Counter()
        self._arrivals = 0
        self._unstarted = [f"{name}-{number}" for number in range(threads)]
        """Threads are started with the first job: none may be there before the worker is confined (`sandbox/`)."""

    def submit(self, origin: Origin, do: Callable[[], object]) -> None:
        """`do` must not raise. May be called from any thread."""
        with self._changed:
            self._arrivals += 1
            self._queue.add(_Job(origin.key, origin.weight, origin.batch, self._arrivals, do))
            self._changed.notify()
            names, self._unstarted = self._unstarted, []
        for name in names:
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._changed:
                while (job := self._queue.first(self._may_run)) is None:
                    self._changed.wait()
                self._queue.take(job)
                self._queue.charge(job, 1)
                self._running[job.key] += 1
            job.do()
            with self._changed:
                self._running[job.key] -= 1
                self._changed.notify_all()  # another of this key may run now

    def _may_run(self, job: _Job) -> bool:
        return self._running[job.key] < self._per_key
