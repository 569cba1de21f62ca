"""Which requests can share a step, and which of these groups is next.

One set of LoRA adapters applies to a whole step, and deterministic requests have steps of their own. A group is a list
of requests that can be computed together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from paddock.scheduling.request import Request
from paddock.types import Adapters


class StepGroups:
    """The group of the request that has waited longest is next, so no request waits for more steps than there are
    requests.
    """

    def __init__(self, exact_batch: int) -> None:
        self._exact_batch = exact_batch
        """How many deterministic answers may share a step."""
        self._now = 0

    def enter(self, request: Request) -> None:
        """Put a new request behind all that wait already."""
        request.last_turn = self._now

    def next(self, ready: list[Request]) -> list[Request]:
        """Choose the requests of the next step among those that have something to compute."""
        if not ready or _all_alike(ready):
            return ready
        self._now += 1
        group = min(self._groups(ready), key=lambda group: min(request.last_turn for request in group))
        for request in group:
            request.last_turn = self._now
        return group

    def _groups(self, ready: list[Request]) -> Iterator[list[Request]]:
        shared: defaultdict[Adapters, list[Request]] = defaultdict(list)
        exact: defaultdict[Adapters, list[Request]] = defaultdict(list)
        for request in ready:
            if not request.deterministic:
                shared[request.adapters].append(request)
            elif self._exact_batch > 1 and request.is_generating:
                exact[request.adapters].append(request)
            else:
                yield [request]
        for requests in exact.values():
            # libllama computes adjacent sequences in one pass.
            requests.sort(key=lambda request: request.sequence)
            yield from (requests[at : at + self._exact_batch] for at in range(0, len(requests), self._exact_batch))
        yield from shared.values()


def _all_alike(ready: list[Request]) -> bool:
    adapters = ready[0].adapters
    return not any(request.deterministic or request.adapters != adapters for request in ready)
