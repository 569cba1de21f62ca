"""Which inputs go into the next step of an embedding or reranking model: as many as fit, from all requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paddock.scheduling.fairness import FairQueue

# The step is full after this many inputs that do not fit.
_MAX_SKIPPED = 64


@dataclass(slots=True, eq=False)
class Job:
    """A request as the packer sees it: the tokens of its inputs, and how many inputs are scheduled."""

    id: int
    inputs: list[list[int]]
    answer: Any = None
    """The caller's own object. The packer does not use it."""
    key: str = ""
    """The API key. Requests of one key take turns; keys share the model by weight."""
    weight: float = 1.0
    batch: bool = False
    """Low priority: no user waits for the answer."""
    taken: int = 0
    begun: int = 0
    """Tokens of the scheduled inputs."""
    arrival: int = 0


class Packer:
    """One queue for all requests. Keys take turns by the tokens computed for them, and the requests of one key input by
    input, so a small request need not wait for a big one.

    A step holds up to `tokens` tokens; a longer input has a step to itself. An input that does not fit into the rest of
    a step is the first of its key in the next one, so none starves, and shorter ones fill the gap.
    """

    def __init__(self, *, tokens: int, inputs: int) -> None:
        self._tokens = tokens
        self._inputs = inputs
        self._jobs: FairQueue[Job] = FairQueue()

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
        assert job.inputs, "a request has at least one input"
        self._jobs.add(job)

    def remove(self, id: int) -> None:
        """Remove a cancelled request. An unknown id is ignored: it may be done."""
        for job in [job for job in self._jobs if job.id == id]:
            self._jobs.remove(job)

    def take(self) -> list[tuple[Job, int]]:
        """The next step: pairs of a request and the index of its input. Inputs of a request come once and in order."""
        step: list[tuple[Job, int]] = []
        skipped: set[Job] = set()
        room = self._tokens
        while len(step) < self._inputs and len(skipped) < _MAX_SKIPPED:
            job = self._jobs.first(lambda job: job not in skipped)
            if job is None:
                break
            size = len(job.inputs[job.taken])
            if size > room and step:
                skipped.add(job)
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
