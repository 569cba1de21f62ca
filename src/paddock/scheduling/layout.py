"""The two memory layouts: one pool of cells for all sequences, or a stream of cells for each.

A layout knows which sequence ids are free and how many cells a step may fill.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from paddock.scheduling.cache import Cache
from paddock.scheduling.request import Request
from paddock.scheduling.sharing import Sharing
from paddock.types import CacheShape


@dataclass(slots=True)
class Layout(ABC):
    flushes_while_running: ClassVar[bool]
    """Whether parked sequences are copied to host memory while others run."""

    cache: Cache
    sharing: Sharing
    shape: CacheShape
    slots: int
    running: list[Request]

    @property
    @abstractmethod
    def free_cells(self) -> int:
        """How many cells the next step may fill."""

    @abstractmethod
    def runs_alone(self, request: Request) -> bool:
        """Whether a request can run only while no other does."""

    @abstractmethod
    def make_room(self, request: Request) -> bool:
        """Whether a request can run beside the others. Flushes parked sequences if that helps."""

    @abstractmethod
    def free_sequence(self) -> int:
        """A sequence id for a new request. Flushes the parked sequence that has it."""

    @abstractmethod
    def close_gaps(self, requests: list[Request]) -> None:
        """Move sequences so that the ids of these requests are adjacent, where that makes a step faster."""

    def flush(self) -> None:
        """Copy all parked sequences to host memory."""
        for sequence in self.cache.parked:
            self.cache.flush(sequence)


class UnifiedLayout(Layout):
    """One pool of cells. Sequences share cells without a copy, and one request may use the whole context."""

    flushes_while_running = True

    @property
    def free_cells(self) -> int:
        return self.cache.free

    def runs_alone(self, request: Request) -> bool:
        return request.deterministic  # its bytes depend on the position of its cells in the pool

    def make_room(self, request: Request) -> bool:
        if self.runs_alone(request) or not self._has_room(request):
            self.flush()
        return self._has_room(request)

    def _has_room(self, request: Request) -> bool:
        if not self.running:
            return True
        if self.runs_alone(request) or self.runs_alone(self.running[0]):
            return False
        # A request that waits for a leader will share the leader's cells.
        promised = sum(other.pending + 1 - (other.awaited if other.leader else 0) for other in self.running)
        return len(request.tokens) - self.sharing.shared_cells(request) + promised < self.cache.free

    def free_sequence(self) -> int:
        parked = self.cache.parked
        taken = {*(request.sequence for request in self.running), *parked}
        free = next((id for id in range(self.slots + self.shape.spare_sequences) if id not in taken), None)
        if free is None:
            free = parked[0]
            self.cache.flush(free)
        return free

    def close_gaps(self, requests: list[Request]) -> None:
        """Not needed: a step is as fast with gaps."""


class StreamLayout(Layout):
    """A stream of cells for each slot. A prefix is shared by copying it, and a request never runs out of cells.

    libllama computes streams in one pass only if their ids are adjacent.
    """

    flushes_while_running = False

    @property
    def free_cells(self) -> int:
        return sys.maxsize

    def runs_alone(self, request: Request) -> bool:
        return False

    def make_room(self, request: Request) -> bool:
        return True

    def free_sequence(self) -> int:
        """The one nearest to the running sequences, rather an empty one than a parked one, rather an older parked one
        than a newer.
        """
        running = [request.sequence for request in self.running]
        parked = self.cache.parked
        low, high = min(running, default=self.slots), max(running, default=-1)

        def cost(sequence: int) -> tuple[int, int]:
            distance = max(low - 1 - sequence, sequence - high - 1, 0) if running else 0
            return distance, parked.index(sequence) + 1 if sequence in parked else 0

        best = min((sequence for sequence in range(self.slots) if sequence not in running), key=cost)
        if best in parked:
            self.cache.flush(best)
        return best

    def close_gaps(self, requests: list[Request]) -> None:
        if self.shape.reuse == "none":
            return
        ids = sorted(request.sequence for request in requests)
        while ids and ids[-1] - ids[0] + 1 > len(ids):
            taken = {request.sequence for request in self.running}
            gap = next((id for id in range(ids[0], ids[-1]) if id not in taken), None)
            if gap is None:
                return  # running requests that are not part of this group are between them
            if gap in self.cache.parked:
                self.cache.flush(gap)
            last = next(request for request in requests if request.sequence == ids[-1])
            self.cache.move(last.sequence, gap, last.computed)
            last.sequence = gap
            ids = sorted(request.sequence for request in requests)
