"""Which inputs go into the next step of a model that makes vectors: as many as fit, of as many requests as wait."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, eq=False)
class Job:
    """A request as the packer sees it: the tokens of its inputs, and how many of them have been handed out."""

    id: int
    inputs: list[list[int]]
    answer: Any = None
    """What its owner makes of the results; nothing to the packer."""
    taken: int = 0


class Packer:
    """One queue for all. Requests take turns input by input, so that a question need not wait for a library.

    A step is filled up to so many `tokens`; a longer input has one to itself. Who does not fit into what is left of a
    step is the first of the next one: so none waits forever, and shorter ones fill the gap meanwhile.
    """

    def __init__(self, *, tokens: int, inputs: int) -> None:
        self._tokens = tokens
        self._inputs = inputs
        self._jobs: deque[Job] = deque()

    @property
    def idle(self) -> bool:
        return not self._jobs

    @property
    def queued(self) -> int:
        """How many requests have inputs left."""
        return len(self._jobs)

    @property
    def queued_tokens(self) -> int:
        return sum(len(tokens) for job in self._jobs for tokens in job.inputs[job.taken :])

    def add(self, job: Job) -> None:
        assert job.inputs, "a request without inputs is answered by nobody"
        self._jobs.append(job)

    def remove(self, id: int) -> None:
        """Nobody waits for it any more; an unknown id may be one that is done."""
        self._jobs = deque(job for job in self._jobs if job.id != id)

    def take(self) -> list[tuple[Job, int]]:
        """The next step: requests and which of their inputs. Each input is handed out once, a request's in order."""
        step: list[tuple[Job, int]] = []
        passed: list[Job] = []
        room = self._tokens
        while self._jobs and len(step) < self._inputs:
            job = self._jobs.popleft()
            size = len(job.inputs[job.taken])
            if size > room and step:
                passed.append(job)
                continue
            step.append((job, job.taken))
            room -= size
            job.taken += 1
            if job.taken < len(job.inputs):
                self._jobs.append(job)
        self._jobs.extendleft(reversed(passed))
        return step
