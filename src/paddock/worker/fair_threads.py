"""Threads for work that is done in pieces. API keys take turns after every piece."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from paddock.scheduling import FairQueue
from paddock.types import Origin


@dataclass(slots=True, eq=False)
class _Work:
    key: str
    weight: float
    batch: bool
    step: Callable[[], int | None]
    id: int
    size: int
    arrival: int = 0
    is_running: bool = False
    is_removed: bool = False


class FairThreads:
    """The next piece is for the key that has had the least service for its weight. At most `per_key` works of one key
    run at the same time, so that no key occupies all threads.
    """

    def __init__(self, name: str, threads: int = 1, *, per_key: int = 1) -> None:
        self._per_key = per_key
        self._changed = threading.Condition()
        self._queue: FairQueue[_Work] = FairQueue()
        self._running: Counter[str] = Counter()
        self._unstarted = [f"{name}-{number}" for number in range(threads)]
        """Threads start with the first work: the sandbox needs a process with a single thread (`sandbox/`)."""

    def add(self, origin: Origin, step: Callable[[], int | None], *, id: int = 0, size: int = 0) -> None:
        """Any thread may call this. `step` does one piece and returns its cost, or None after the last piece. It must
        not raise.
        """
        with self._changed:
            self._queue.add(_Work(origin.key, origin.weight, origin.batch, step, id, size))
            self._changed.notify()
            names, self._unstarted = self._unstarted, []
        for name in names:
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def remove(self, id: int) -> None:
        """Do no further piece of this work. Unknown ids are ignored."""
        with self._changed:
            for work in [work for work in self._queue if work.id == id]:
                work.is_removed = True
                self._queue.remove(work)

    def held_by(self, key: str) -> tuple[int, int]:
        """The number of unfinished works of this key, and their total size."""
        with self._changed:
            sizes = [work.size for work in self._queue if work.key == key]
        return len(sizes), sum(sizes)

    def _run(self) -> None:
        while True:
            with self._changed:
                while (work := self._queue.first(self._may_run)) is None:
                    self._changed.wait()
                work.is_running = True
                self._running[work.key] += 1
            cost = work.step()
            with self._changed:
                work.is_running = False
                self._running[work.key] -= 1
                if not work.is_removed:
                    self._queue.charge(work, cost or 1)
                    if cost is None:
                        self._queue.take(work)
                    else:
                        self._queue.rotate(work)
                self._changed.notify_all()

    def _may_run(self, work: _Work) -> bool:
        return not work.is_running and self._running[work.key] < self._per_key
