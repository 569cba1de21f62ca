"""Which requests can share a step, and which of these groups is next.

One set of LoRA adapters applies to a whole step, and deterministic requests have steps of their own. A group is a list
of requests that can be computed together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from paddock.scheduling.request import Request
from paddock.types import Adapters

_TURN_STEPS = 8
_TURN_SECONDS = 0.05


class StepGroups:
    """The group of the request that has waited longest is next.

    Other adapters need new compute graphs, so a set of adapters keeps its turn for some steps, but not for more than
    `_TURN_SECONDS` and the rest of a step. A request waits at most for a turn of every other set.
    """

    def __init__(self, exact_batch: int, turn_steps: int = _TURN_STEPS) -> None:
        self._exact_batch = exact_batch
        """How many deterministic answers may share a step."""
        self._turn_steps = turn_steps
        self._now = 0
        self._adapters: Adapters | None = None
        """The set whose turn it is."""
        self._steps = 0
        self._seconds = 0.0

    def enter(self, request: Request) -> None:
        """Put a new request behind all that wait already."""
        request.last_turn = self._now

    def next(self, ready: list[Request]) -> list[Request]:
        """Choose the requests of the next step among those that have something to compute."""
        if not ready:
            return ready
        if _all_alike(ready):
            self._adapters, self._steps = ready[0].adapters, self._turn_steps  # another set need not wait
            return ready
        self._now += 1
        groups = list(self._groups(ready))
        if not self._is_turn_over:
            groups = [group for group in groups if group[0].adapters == self._adapters] or groups
        else:
            groups = [group for group in groups if group[0].adapters != self._adapters] or groups
        group = min(groups, key=lambda group: min(request.last_turn for request in group))
        for request in group:
            request.last_turn = self._now
        if group[0].adapters != self._adapters or self._is_turn_over:
            self._adapters, self._steps, self._seconds = group[0].adapters, 0, 0.0
        self._steps += 1
        return group

    def spent(self, seconds: float) -> None:
        """The last step took so long."""
        self._seconds += seconds

    @property
    def _is_turn_over(self) -> bool:
        return self._steps >= self._turn_steps or self._seconds >= _TURN_SECONDS

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
