"""One run: every trial on every backend, in an order that favours none."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

from paddock_lab.client import ChatFailed
from paddock_lab.prefix_cache.backends import Backend
from paddock_lab.prefix_cache.designs import Step
from paddock_lab.progress import Advance
from paddock_lab.report import Recording


@dataclass(frozen=True)
class Observation:
    """One request. None stands for what the server does not tell."""

    at: float
    """Seconds since the run began."""
    trial: int
    dropped: bool
    """A trial to warm up: noted, and left out of every figure."""
    backend: str
    kind: str
    tenant: int | None = None
    ttft: float | None = None
    """Seconds to the first token; None where the request failed."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    remembered_tokens: int | None = None
    """What the server says afterwards to hold of one prompt."""
    error: str = ""


@dataclass
class Experiment:
    backends: Sequence[Backend]
    recording: Recording
    chance: random.Random
    max_tokens: int
    dropped: int
    """So many trials come first that do not count."""
    observations: list[Observation] = field(default_factory=list)

    def run(self, trials: Iterable[list[Step]], advance: Advance) -> None:
        begun = time.perf_counter()
        for number, steps in enumerate(trials):
            for backend in self.chance.sample(self.backends, len(self.backends)):
                for step in steps:
                    seen = self._ask(backend, step, number, begun)
                    self.observations.append(seen)
                    self.recording.add(asdict(seen))
                    if seen.error:
                        break  # what comes next stands on it
                advance(f"trial {number + 1}: {backend.name}")

    def _ask(self, backend: Backend, step: Step, number: int, begun: float) -> Observation:
        dropped, at = number < self.dropped, round(time.perf_counter() - begun, 3)
        try:
            reply = backend.ask(step.messages, self.max_tokens if step.answer else 1)
        except (ChatFailed, OSError) as failure:
            error = str(failure) or type(failure).__name__
            return Observation(at, number, dropped, backend.name, step.kind, step.tenant, error=error)
        return Observation(
            at,
            number,
            dropped,
            backend.name,
            step.kind,
            step.tenant,
            reply.first_token,
            reply.prompt_tokens,
            reply.cached_tokens,
            reply.output_tokens,
            backend.remembered(),
        )
