"""Which inputs go into the next step of a model that makes vectors: as many as fit, of as many requests as wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paddock.scheduling.fairness import FairQueue

# So many inputs that do not fit into what is left of a step are enough to know that it is full.
_LOOKED_AT = 64


@dataclass(slots=True, eq=False)
class Job:
    """A request as the packer sees it: the tokens of its inputs, and how many of them have been handed out."""

    id: int
    inputs: list[list[int]]
    answer: Any = None
    """What its owner makes of the results; nothing to the packer."""
    key: str = ""
    """For whom it is: those of one key take turns, and keys share the model by weight."""
    weight: float = 1.0
    batch: bool = False
    """Nobody waits for the answer."""
    taken: int = 0
    begun: int = 0
    """Tokens of the inputs that were handed out."""
    arrival: int = 0


class Packer:
    """One queue for all. Keys take turns by what was computed for them, and the requests of one input by input, so
    that a question need not wait for a library.

    A step is filled up to so many `tokens`; a longer input has one to itself. Who does not fit into what is left of a
    step is the first of its key in the next one: so none waits forever, and shorter ones fill the gap meanwhile.
    """

    def __init__(self, *, tokens: int, inputs: int) -> None:
        self._tokens = tokens
        self._inputs = inputs
        self._jobs: FairQueue[Job] = FairQueue()
        self._arrivals = 0

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
        self._arrivals += 1
        job.arrival = self._arrivals
        self._jobs.add(job)

    def remove(self, id: int) -> None:
        """Nobody waits for it any more; an unknown id may be one that is done."""
        for job in [job for job in self._jobs if job.id == id]:
            self._jobs.remove(job)

    def take(self) -> list[tuple[Job, int]]:
        """The next step: requests and which of their inputs. Each input is handed out once, a request's in order."""
        step: list[tuple[Job, int]] = []
        passed: set[Job] = set()
        room = self._tokens
        while len(step) < self._inputs and len(passed) < _LOOKED_AT:
            job = self._jobs.first(lambda job: job not in passed)
            if job is None:
                break
            size = len(job.inputs[job.taken])
            if size > room and step:
                passed.add(job)
                continue
            step.append((job, job.taken))
            room -= size
            job.taken += 1
            job.begun += size
            self._jobs.charge(job, size)
            if job.taken < len(job.inputs):
                self._jobs.rotate(job)
            else:
                self._jobs.take(job)
        return step
