"""One run: every trial on every backend, in random order of the backends."""

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
    """One request. None: the server does not report it."""

    at: float
    """Seconds since the run began."""
    trial: int
    dropped: bool
    """A warm-up trial: recorded, but left out of every figure."""
    backend: str
    kind: str
    tenant: int | None = None
    ttft: float | None = None
    """Seconds to the first token; None if the request failed."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    remembered_tokens: int | None = None
    """Tokens of one prompt that the server reports to have cached after the request."""
    error: str = ""


@dataclass
class Experiment:
    backends: Sequence[Backend]
    recording: Recording
    rng: random.Random
    max_tokens: int
    dropped: int
    """The number of warm-up trials."""
    observations: list[Observation] = field(default_factory=list)

    def run(self, trials: Iterable[list[Step]], advance: Advance) -> None:
        begun = time.perf_counter()
        for number, steps in enumerate(trials):
            for backend in self.rng.sample(self.backends, len(self.backends)):
                for step in steps:
                    observation = self._ask(backend, step, number, begun)
                    self.observations.append(observation)
                    self.recording.add(asdict(observation))
                    if observation.error:
                        break  # the next steps depend on it
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
            backend.cached_prompt_tokens(),
        )
