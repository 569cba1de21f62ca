"""A replica as a fluid: prompts are read one after another, answers grow together, and both share its time."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

from paddock.replicas.routing import Blocks
from paddock_lab.routing.machines import BLOCK_TOKENS, Machine

_READING = 0.5
"""The share of its time that reading gets while answers are being written."""
_NOTHING = 1e-3
"""Of a token: more than rounding leaves of it."""


@dataclass(eq=False, slots=True)
class Request:
    chain: tuple[int, ...]
    """The blocks of its prompt, as a router sees them. The last may be a part of one, which no other prompt has."""
    tokens: int
    answer: int
    """Tokens that it will be answered with."""
    afterwards: tuple[int, ...]
    """Whole blocks of prompt and answer: what the replica holds in the end, and the next turn begins with."""
    user: int | None
    """Who will go on with the conversation."""
    arrived: float = 0.0
    router: int = 0
    cached: int = 0
    """Tokens that need not be read."""
    first_token: float = 0.0
    """The moment of it."""


@dataclass(eq=False)
class Replica:
    machine: Machine
    now: float = 0.0
    busy: int = 0
    """Requests that run or wait."""
    version: int = 0
    """Another one with each change, after which `next` may be another moment."""
    _waiting: deque[Request] = field(default_factory=deque)
    _reading: deque[Request] = field(default_factory=deque)
    """All have a place; the first of them is being read."""
    _unread: float = 0.0
    """Tokens of that one."""
    _answering: list[tuple[float, int, Request]] = field(default_factory=list)
    """A heap, by how far `_written` must come."""
    _written: float = 0.0
    """Tokens that an answer would have by now that has been written all the time."""

    def __post_init__(self) -> None:
        self._cache = Blocks(self.machine.cache_blocks)

    def accept(self, request: Request, now: float) -> None:
        self._flow(now)
        self.busy += 1
        self._waiting.append(request)
        self._let_in()

    def proceed(self, now: float) -> list[Request]:
        """Go on until now; those whose answers are complete."""
        self._flow(now)
        if self._reading and self._unread <= _NOTHING:
            read = self._reading.popleft()
            self._cache.hold(read.chain)
            heapq.heappush(self._answering, (self._written + read.answer, self.version, read))
            read.first_token = now + self.machine.step(len(self._answering))
            self._begin_reading()
        ended = []
        while self._answering and self._answering[0][0] <= self._written + _NOTHING:
            request = heapq.heappop(self._answering)[2]
            self._cache.hold(request.afterwards)
            ended.append(request)
        self.busy -= len(ended)
        self._let_in()
        return ended

    @property
    def next(self) -> float | None:
        """When something is complete, if nothing else happens before."""
        moments = []
        reading, writing = self._rates()
        if self._reading:
            moments.append(self.now + max(0.0, self._unread) / reading)
        if self._answering:
            moments.append(self.now + max(0.0, self._answering[0][0] - self._written) / writing)
        return min(moments, default=None)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _rates(self) -> tuple[float, float]:
        """Tokens read, and tokens written of each answer, in a second."""
        share = (_READING if self._answering else 1.0) if self._reading else 0.0
        return share * self.machine.reads, (1 - share) / self.machine.step(len(self._answering))

    def _flow(self, now: float) -> None:
        reading, writing = self._rates()
        self._unread -= reading * (now - self.now)
        self._written += writing * (now - self.now)
        self.now = now
        self.version += 1

    def _let_in(self) -> None:
        while self._waiting and len(self._reading) + len(self._answering) < self.machine.slots:
            self._reading.append(self._waiting.popleft())
            if len(self._reading) == 1:
                self._begin_reading()

    def _begin_reading(self) -> None:
        """What is known is known now: whatever was read until now counts, so a burst reads a prompt once."""
        if self._reading:
            request = self._reading[0]
            request.cached = min(BLOCK_TOKENS * self._cache.known(request.chain), request.tokens - 1)
            self._unread = request.tokens - request.cached
