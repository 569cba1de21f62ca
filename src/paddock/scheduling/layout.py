"""The two memory layouts: one pool of cells for all sequences, or a stream of cells for each.

A layout knows which sequence ids are free and how many cells a step may fill.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass

from paddock.scheduling.cache import Cache
from paddock.scheduling.gaps import Move, count_gaps, worth_making
from paddock.scheduling.request import Request
from paddock.scheduling.sharing import Sharing, namespace
from paddock.types import CacheShape


@dataclass(slots=True)
class Layout(ABC):
    cache: Cache
    sharing: Sharing
    shape: CacheShape
    slots: int
    running: list[Request]

    @property
    def writes_back_while_running(self) -> bool:
        """Whether resident sequences are copied to host memory while others run."""
        return self.shape.saves_parts

    @property
    def write_back_delay(self) -> float:
        """How many seconds nothing must run before the next part is copied to host memory. What is copied as a whole
        makes a request that arrives meanwhile wait for long.
        """
        return 0.01 if self.shape.saves_parts else 2.0

    @property
    @abstractmethod
    def free_cells(self) -> int:
        """How many cells the next step may fill."""

    @abstractmethod
    def runs_alone(self, request: Request) -> bool:
        """Whether a request can run only while no other does."""

    @abstractmethod
    def make_room(self, request: Request) -> bool:
        """Whether a request can run beside the others. Reclaims resident sequences if that helps."""

    def free_sequence(self, request: Request) -> int:
        """A sequence id for a new request: that of the resident sequence that it continues, or an empty one."""
        running = [other.sequence for other in self.running]
        home = self.cache.home(namespace(request), request.tokens)
        if home is None or home in running:
            return self._empty_sequence(running)
        is_cut = self.cache.is_worth_sparing(home, namespace(request), request.tokens)
        return self._empty_sequence([*running, home]) if is_cut and self._has_spare([*running, home]) else home

    def _has_spare(self, taken: list[int]) -> bool:
        """Whether another sequence can be used at no cost."""
        ids = (id for id in range(self.slots) if id not in taken)
        return any(id not in self.cache.resident or self.cache.is_stored(id) for id in ids)

    @abstractmethod
    def _empty_sequence(self, running: list[int]) -> int:
        """A sequence id that is not in use. If there is none, a resident sequence is reclaimed."""

    @abstractmethod
    def close_gaps(self, requests: list[Request], pass_seconds: float) -> None:
        """Move the sequences of these answers so that their ids are adjacent, where that saves time. A step takes
        `pass_seconds` longer for each gap; 0: not known yet.
        """

    @abstractmethod
    def count_gaps(self, requests: list[Request]) -> int:
        """How many more passes than one a step for these answers takes."""

    def reclaim(self, cells: int) -> bool:
        """Reclaim resident sequences until so many cells are free. False: there are not so many."""
        for sequence in self.cache.resident:
            if self.free_cells >= cells:
                break
            self.cache.reclaim(sequence)
        return self.free_cells >= cells

    def reclaim_all(self) -> None:
        for sequence in self.cache.resident:
            self.cache.reclaim(sequence)


class UnifiedLayout(Layout):
    """One pool of cells. Sequences share cells without a copy, and one request may use the whole context."""

    @property
    def free_cells(self) -> int:
        return self.cache.free

    def runs_alone(self, request: Request) -> bool:
        return request.deterministic  # its bytes depend on the position of its cells in the pool

    def make_room(self, request: Request) -> bool:
        if not self.running and self.runs_alone(request):
            self.reclaim_all()
        # Also if nothing runs: a prefix is restored into free cells only.
        shared = self.cache.touch(namespace(request), request.tokens)
        for sequence in sorted(self.cache.resident, key=lambda sequence: sequence in shared):
            if self._has_room(request):
                break
            self.cache.reclaim(sequence)
        return not self.running or self._has_room(request)

    def _has_room(self, request: Request) -> bool:
        if self.running and (self.runs_alone(request) or self.runs_alone(self.running[0])):
            return False
        # A request that waits for a leader will share the leader's cells.
        promised = sum(other.pending + 1 - (other.awaited if other.leader else 0) for other in self.running)
        return len(request.tokens) - self.sharing.shared_cells(request) + promised < self.cache.free

    def _empty_sequence(self, running: list[int]) -> int:
        resident = self.cache.resident
        taken = {*running, *resident}
        free = next((id for id in range(self.slots + self.shape.spare_sequences) if id not in taken), None)
        if free is None:
            free = resident[0]
            self.cache.reclaim(free)
        return free

    def close_gaps(self, requests: list[Request], pass_seconds: float) -> None:
        """Not needed: a step is as fast with gaps."""

    def count_gaps(self, requests: list[Request]) -> int:
        return 0


class StreamLayout(Layout):
    """A stream of cells for each slot. A prefix is shared by copying it, and a request never runs out of cells.

    libllama computes streams in one pass only if their ids are adjacent.
    """

    @property
    def free_cells(self) -> int:
        return sys.maxsize

    def runs_alone(self, request: Request) -> bool:
        return False

    def make_room(self, request: Request) -> bool:
        return True

    def _empty_sequence(self, running: list[int]) -> int:
        """The empty stream nearest to the running ones, or the stream of a resident that is old and near."""
        resident = self.cache.resident
        low, high = min(running, default=self.slots), max(running, default=-1)

        def cost(sequence: int) -> tuple[bool, int]:
            distance = max(low - 1 - sequence, sequence - high - 1, 0) if running else 0
            is_resident = sequence in resident
            return is_resident, distance + (resident.index(sequence) if is_resident else 0)

        best = min((sequence for sequence in range(self.slots) if sequence not in running), key=cost)
        if best in resident:
            self.cache.reclaim(best)
        return best

    def close_gaps(self, requests: list[Request], pass_seconds: float) -> None:
        moves = self._moves(requests) if self.shape.reuse != "none" else []
        if not moves:
            return
        streams = {request.sequence: request for request in requests}
        # A gap is there for as long as two answers are.
        steps = sorted(request.expected_left for request in requests)[-2]
        for move in worth_making(moves, streams, steps=steps, pass_seconds=pass_seconds):
            if move.aside is not None:
                self.cache.move(move.target, move.aside, self.cache.length(move.target))
            elif move.target in self.cache.resident:
                self.cache.reclaim(move.target)
            request = streams.pop(move.source)
            self.cache.move(move.source, move.target, request.computed)
            request.sequence = move.target
            streams[move.target] = request

    def count_gaps(self, requests: list[Request]) -> int:
        return count_gaps([request.sequence for request in requests])

    def _moves(self, requests: list[Request]) -> list[Move]:
        """What makes the streams of these requests adjacent, as far as no other running request is between them."""
        moves: list[Move] = []
        lengths = {request.sequence: request.computed for request in requests}
        taken = {request.sequence for request in self.running}
        resident = set(self.cache.resident)
        while count_gaps(lengths):
            target = next((id for id in range(min(lengths), max(lengths)) if id not in taken), None)
            if target is None:
                break
            source = max(lengths)
            aside, seconds = None, self.cache.move_seconds(lengths[source])
            if target in resident:
                aside = self._aside(taken, resident)
                seconds += self._vacate_seconds(target, aside)
                resident ^= {target} if aside is None else {target, aside}
            moves.append(Move(source, target, aside, seconds))
            lengths[target] = lengths.pop(source)
            taken ^= {source, target}
        return moves

    def _aside(self, taken: set[int], resident: set[int]) -> int | None:
        """An empty stream that is not between running ones. None: there is none, or a copy to it is slow."""
        outside = (id for id in range(self.slots) if not min(taken) < id < max(taken))
        empty = (id for id in outside if id not in taken and id not in resident)
        return next(empty, None) if self.shape.forks_on_device else None

    def _vacate_seconds(self, resident: int, aside: int | None) -> float:
        if aside is None:
            return self.cache.reclaim_seconds(resident)
        return self.cache.move_seconds(self.cache.length(resident))
