"""A simulated replica: prompts are prefilled one after another, answers decode together, and both share its time."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

from paddock.replicas.routing import Blocks
from paddock_lab.routing.machines import BLOCK_TOKENS, Machine

_PREFILL_SHARE = 0.5
"""The share of time for prefill while answers decode."""
_ROUNDING = 1e-3
"""Tokens: larger than any rounding error."""


@dataclass(eq=False, slots=True)
class Request:
    chain: tuple[int, ...]
    """The blocks of its prompt, as a router sees them. The last one may be partial, and is then unique."""
    tokens: int
    answer: int
    """Tokens of the answer."""
    blocks_after: tuple[int, ...]
    """Whole blocks of prompt and answer: cached in the end, and the prefix of the next turn."""
    user: int | None
    """The user who continues the conversation; None for a single request."""
    arrived: float = 0.0
    router: int = 0
    cached: int = 0
    """Cached prompt tokens."""
    first_token: float = 0.0
    """The time of the first token."""


@dataclass(eq=False)
class Replica:
    machine: Machine
    now: float = 0.0
    busy: int = 0
    """Running and waiting requests."""
    version: int = 0
    """Incremented with each change, because `next` may change."""
    _waiting: deque[Request] = field(default_factory=deque)
    _prefilling: deque[Request] = field(default_factory=deque)
    """Requests with a slot; the first one is in prefill."""
    _prefill_left: float = 0.0
    """Prompt tokens of the first one that are not computed yet."""
    _decoding: list[tuple[float, int, Request]] = field(default_factory=list)
    """A heap, by the value of `_decoded` at which the answer is complete."""
    _decoded: float = 0.0
    """Tokens of a hypothetical answer that decodes since the start."""

    def __post_init__(self) -> None:
        self._cache = Blocks(self.machine.cache_blocks)

    def accept(self, request: Request, now: float) -> None:
        self._advance_clock(now)
        self.busy += 1
        self._waiting.append(request)
        self._start_waiting()

    def advance_to(self, now: float) -> list[Request]:
        """Simulate until `now`. Returns the requests whose answers are complete."""
        self._advance_clock(now)
        if self._prefilling and self._prefill_left <= _ROUNDING:
            request = self._prefilling.popleft()
            self._cache.hold(request.chain)
            heapq.heappush(self._decoding, (self._decoded + request.answer, self.version, request))
            request.first_token = now + self.machine.step(len(self._decoding))
            self._start_prefill()
        ended = []
        while self._decoding and self._decoding[0][0] <= self._decoded + _ROUNDING:
            request = heapq.heappop(self._decoding)[2]
            self._cache.hold(request.blocks_after)
            ended.append(request)
        self.busy -= len(ended)
        self._start_waiting()
        return ended

    @property
    def next(self) -> float | None:
        """The time of the next completion, if no request arrives before."""
        times = []
        prefill, decode = self._rates()
        if self._prefilling:
            times.append(self.now + max(0.0, self._prefill_left) / prefill)
        if self._decoding:
            times.append(self.now + max(0.0, self._decoding[0][0] - self._decoded) / decode)
        return min(times, default=None)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _rates(self) -> tuple[float, float]:
        """Prompt tokens per second, and tokens per second of each answer."""
        share = (_PREFILL_SHARE if self._decoding else 1.0) if self._prefilling else 0.0
        return share * self.machine.prefill_rate, (1 - share) / self.machine.step(len(self._decoding))

    def _advance_clock(self, now: float) -> None:
        prefill, decode = self._rates()
        self._prefill_left -= prefill * (now - self.now)
        self._decoded += decode * (now - self.now)
        self.now = now
        self.version += 1

    def _start_waiting(self) -> None:
        while self._waiting and len(self._prefilling) + len(self._decoding) < self.machine.slots:
            self._prefilling.append(self._waiting.popleft())
            if len(self._prefilling) == 1:
                self._start_prefill()

    def _start_prefill(self) -> None:
        """Looks up the cache when prefill starts, so that a burst computes a shared prompt once."""
        if self._prefilling:
            request = self._prefilling[0]
            request.cached = min(BLOCK_TOKENS * self._cache.known(request.chain), request.tokens - 1)
            self._prefill_left = request.tokens - request.cached
