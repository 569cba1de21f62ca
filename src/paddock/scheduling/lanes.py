"""Who can share a step, and whose turn it is where not all can.

Adapters act on everything that a context computes, so a step has one set of them; and deterministic requests have steps
of their own. Those who can be computed together are a lane.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from paddock.scheduling.request import Request
from paddock.types import Adapters


class Lanes:
    """Next is the lane of whoever has waited longest, so that nobody waits for more turns than there are requests."""

    def __init__(self, together: int) -> None:
        self._together = together
        """How many deterministic answers may share a step."""
        self._now = 0

    def enter(self, request: Request) -> None:
        """A request begins: behind all who are waiting already."""
        request.turn = self._now

    def next(self, ready: list[Request]) -> list[Request]:
        """Of those who have something to compute, all who can share the next step."""
        if not ready or _all_alike(ready):
            return ready
        self._now += 1
        lane = min(self._lanes(ready), key=lambda lane: min(request.turn for request in lane))
        for request in lane:
            request.turn = self._now
        return lane

    def _lanes(self, ready: list[Request]) -> Iterator[list[Request]]:
        shared: defaultdict[Adapters, list[Request]] = defaultdict(list)
        answering: defaultdict[Adapters, list[Request]] = defaultdict(list)
        for request in ready:
            if not request.deterministic:
                shared[request.adapters].append(request)
            elif self._together > 1 and request.generating:
                answering[request.adapters].append(request)
            else:
                yield [request]
        for own in answering.values():
            # Next to each other in the cache they are computed at once.
            own.sort(key=lambda request: request.sequence)
            yield from (own[at : at + self._together] for at in range(0, len(own), self._together))
        yield from shared.values()


def _all_alike(ready: list[Request]) -> bool:
    adapters = ready[0].adapters
    return not any(request.deterministic or request.adapters != adapters for request in ready)
