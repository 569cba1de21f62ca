"""A thread for work that comes in bounded pieces. Keys take turns after every piece, by how much was done for each."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

from paddock.scheduling import FairQueue
from paddock.types import Origin


@dataclass(slots=True, eq=False)
class Work:
    id: int
    key: str
    weight: float
    batch: bool
    arrival: int
    size: int
    """What it holds while it waits."""
    pieces: Iterator[int]
    """Each `next` does one piece and says what it cost. It must not raise."""


class FairThread:
    """Between two pieces of any work, another key's work goes first if less was done for that key."""

    def __init__(self, name: str) -> None:
        self._changed = threading.Condition()
        self._queue: FairQueue[Work] = FairQueue()
        self._waiting: dict[int, Work] = {}
        self._arrivals = 0
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def add(self, id: int, origin: Origin, size: int, pieces: Iterator[int]) -> None:
        with self._changed:
            self._arrivals += 1
            work = Work(id, origin.key, origin.weight, origin.batch, self._arrivals, size, pieces)
            self._waiting[id] = work
            self._queue.add(work)
            self._changed.notify()

    def remove(self, id: int) -> None:
        """Nobody waits for it any more: no further piece of it is done. Unknown ids are ignored."""
        with self._changed:
            if (work := self._waiting.pop(id, None)) is not None:
                self._queue.remove(work)

    def held_by(self, key: str) -> tuple[int, int]:
        """How many works of this key are not done, and their size."""
        with self._changed:
            sizes = [work.size for work in self._waiting.values() if work.key == key]
        return len(sizes), sum(sizes)

    def _run(self) -> None:
        while True:
            with self._changed:
                while (work := self._queue.first()) is None:
                    self._changed.wait()
            cost = next(work.pieces, None)
            with self._changed:
                if work.id not in self._waiting:
                    continue  # it was removed in the meantime
                if cost is not None:
                    self._queue.charge(work, cost)
                    self._queue.rotate(work)
                else:
                    del self._waiting[work.id]
                    self._queue.take(work)
