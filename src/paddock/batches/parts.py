"""The lines of a batch in parts, one for each replica. Pure.

Lines are sorted by prefix, so those in flight mostly have the same one. With one part every replica would compute the
prefix of every group. With a part of its own each replica computes other groups.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from paddock.batches.records import Line

_FEWEST: Final = 16
"""A part that has no lines left takes half of the largest one, unless that is fewer than these."""


@dataclass(slots=True, eq=False)
class Part:
    """Lines of adjacent ranks."""

    next: int = 0
    """Lines from this rank on are not fetched yet."""
    end: int = 0
    """The rank at which the part ends."""
    queue: deque[Line] = field(default_factory=deque)
    """Lines that were fetched, and wait."""
    running: int = 0

    @property
    def is_fetched(self) -> bool:
        return self.next >= self.end

    def add(self, lines: Sequence[Line], *, is_all: bool) -> None:
        """Add the next lines. `is_all`: there are no more in this part."""
        self.queue.extend(lines)
        self.next = self.end if is_all else lines[-1].rank + 1


class Parts:
    """Every line that waits is in one part."""

    def __init__(self, total: int) -> None:
        """`total` is the number of ranks."""
        self._parts = [Part(0, total)]

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)

    def share_out(self, replicas: int) -> None:
        """Have a part for each replica. Those without lines get some of the others'."""
        self._parts += [Part() for _ in range(replicas - len(self._parts))]
        for part in self._parts:
            if part.is_fetched and not part.queue:
                _take_half(part, max(self._parts, key=lambda other: other.end - other.next + len(other.queue)))

    def next(self) -> Part | None:
        """The part whose line is started next."""
        return min((part for part in self._parts if part.queue), key=lambda part: part.running, default=None)


def _take_half(part: Part, other: Part) -> None:
    """Take the second half of what the other has to fetch, or of its queue."""
    if (half := (other.end - other.next) // 2) >= _FEWEST:
        part.next, part.end, other.end = other.end - half, other.end, other.end - half
    elif (half := len(other.queue) // 2) >= _FEWEST and other.is_fetched:
        part.queue.extendleft(other.queue.pop() for _ in range(half))
