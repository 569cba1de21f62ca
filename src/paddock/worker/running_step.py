"""A step from its plan to its commit, and the requests that end in the meantime."""

from __future__ import annotations

from dataclasses import dataclass, field

from paddock.scheduling import Plan, Request
from paddock.types import Sampled
from paddock.worker.clock import Clock


@dataclass(slots=True)
class RunningStep:
    plan: Plan
    begun: float
    removals: list[tuple[int, int | None]] = field(default_factory=list)
    """The requests, or answers of them, to remove from the scheduler after the step, which uses their cells."""
    prompts: list[tuple[Clock, int]] = field(default_factory=list)
    """For each prompt in it, the clock of its answer and how many of its tokens are computed."""

    @property
    def has_prompts(self) -> bool:
        return len(self.plan.spans) > self.plan.decodes

    def has_ended(self, request: Request) -> bool:
        """Whether what the step computes for this request is thrown away."""
        return bool(self.removals) and any(
            request.id == id and index in (None, request.index) for id, index in self.removals
        )

    def kept(self, results: list[Sampled | None]) -> list[Sampled | None]:
        """The results, without what is thrown away."""
        if not self.removals:
            return results
        pairs = zip(self.plan.requests, results, strict=True)
        return [None if self.has_ended(request) else result for request, result in pairs]
