"""The memory for request bodies, and the minimum rate at which a body must arrive. Pure: no I/O, no clock.

Every byte of a body is charged from the moment it is received until its request has ended.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from paddock.errors import BuffersFull, RateLimitExceeded

SMALL: Final = 256 * 1024
"""Bytes. A quarter of the budget is reserved for bodies up to this size."""
_RETRY: Final = 1.0


class BodyBudget:
    """`total` bytes for all bodies. Large bodies share three quarters of it; one owner gets at most half."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.for_large = total - total // 4
        self.for_owner = total // 2
        self.held = 0
        self.held_large = 0
        self._owners: Counter[str] = Counter()

    def open(self, owner: str) -> HeldBody:
        """An account for one body. The owner is the name of a key or, without keys, an address."""
        return HeldBody(self, owner)

    def held_by(self, owner: str) -> int:
        return self._owners[owner]

    def charge(self, owner: str, before: int, after: int) -> None:
        """A body grows from `before` to `after` bytes. Raises if there is no room; then nothing is charged."""
        held = self.held + after - before
        large = self.held_large + _large(after) - _large(before)
        own = self._owners[owner] + after - before
        if own > self.for_owner:
            raise RateLimitExceeded(
                f"the bodies of your running requests would use {own} bytes; the limit is {self.for_owner}",
                retry_after=_RETRY,
            )
        if held > self.total or (_large(after) and large > self.for_large):
            most = self.for_large if _large(after) else self.total
            raise BuffersFull(
                f"request bodies use all of the {most} bytes reserved for them (server.body_budget): try again later",
                retry_after=_RETRY,
            )
        self.held, self.held_large, self._owners[owner] = held, large, own

    def give_back(self, owner: str, size: int) -> None:
        self.held -= size
        self.held_large -= _large(size)
        self._owners[owner] -= size
        if not self._owners[owner]:
            del self._owners[owner]


@dataclass(slots=True)
class HeldBody:
    budget: BodyBudget
    owner: str
    size: int = 0

    def grow(self, count: int) -> None:
        """Raises `BuffersFull` or `RateLimitExceeded`; what was charged before stays charged."""
        self.budget.charge(self.owner, self.size, self.size + count)
        self.size += count

    def release(self) -> None:
        """May be called more than once."""
        self.budget.give_back(self.owner, self.size)
        self.size = 0


def _large(size: int) -> int:
    return size if size > SMALL else 0


class Pace:
    """The minimum rate of a body: `rate * timeout` bytes in every `timeout` seconds, or its end.

    Faster periods give no credit, so a client cannot send much and then stop.
    """

    def __init__(self, timeout: float, rate: int, now: float) -> None:
        self.timeout = timeout
        self.rate = rate
        self.deadline = now + timeout
        self._missing = rate * timeout

    def received(self, count: int, now: float) -> None:
        self._missing -= count
        if self._missing <= 0:
            self._missing = self.rate * self.timeout
            self.deadline = now + self.timeout
