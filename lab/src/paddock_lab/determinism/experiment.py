"""One run: the same jobs on two replicas, cold and warm, alone and under load."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from paddock_lab.client import ChatFailed, stream
from paddock_lab.determinism.comparing import Transcript
from paddock_lab.determinism.jobs import Job
from paddock_lab.progress import Advance
from paddock_lab.report import Recording
from paddock_lab.targets import Target
from paddock_lab.words import user, words


@dataclass(frozen=True)
class Condition:
    cache: Literal["cold", "warm"]
    load: Literal["alone", "loaded"]

    def __str__(self) -> str:
        return f"{self.cache}, {self.load}"


@dataclass(frozen=True)
class Observation:
    job: Job
    replica: str
    condition: Condition
    transcript: Transcript | None
    """None if the request failed."""
    error: str = ""


@dataclass
class Experiment:
    jobs: Sequence[Job]
    recording: Recording
    temperature: float
    max_tokens: int
    load: int
    """Concurrent jobs under load, beside as many requests that are not compared."""
    seconds: float
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    observations: list[Observation] = field(default_factory=list)
    background_requests: int = 0

    async def run(self, replicas: Sequence[Target], condition: Condition, advance: Advance) -> None:
        """Every job once on each replica, in random order. The replicas run one after another, because two that
        compute at the same time on one machine slow each other down.
        """
        for replica in replicas:
            await self._run_on(replica, condition, advance)

    async def _run_on(self, replica: Target, condition: Condition, advance: Advance) -> None:
        loaded = condition.load == "loaded"
        others = [asyncio.create_task(self._send_background_load(replica)) for _ in range(self.load if loaded else 0)]
        jobs = iter(self.rng.sample(self.jobs, len(self.jobs)))

        async def take_jobs() -> None:
            for job in jobs:
                await self._send(replica, condition, job)
                advance(f"{condition}: {replica.name}")

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.load if loaded else 1):
                    group.create_task(take_jobs())
        finally:
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    async def _send(self, replica: Target, condition: Condition, job: Job) -> None:
        body = {
            "model": replica.model,
            "messages": job.messages,
            "seed": job.seed,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
        }
        begun, transcript, error = time.perf_counter(), None, ""
        try:
            async with asyncio.timeout(self.seconds):
                answer = await stream(replica.server.address, body, usage=False, may_be_empty=True)
            transcript = Transcript(tuple(answer.deltas), answer.finish_reason)
        except (ChatFailed, OSError) as failure:
            error = str(failure) or type(failure).__name__
        self.observations.append(Observation(job, replica.name, condition, transcript, error))
        took = round(time.perf_counter() - begun, 4)
        self.recording.add(
            {"job": job.id, "kind": job.kind, "seed": job.seed, "seed_from": job.seed_from, "replica": replica.name}
            | {**asdict(condition), "seconds": took, "error": error}
            | (
                {"deltas": [text for _, text in transcript.deltas], "finish_reason": transcript.finish_reason}
                if transcript
                else {}
            )
        )

    async def _send_background_load(self, replica: Target) -> None:
        """Send short and long requests until it is cancelled."""
        rng = random.Random()
        while True:
            text = words(rng.randint(5, 300), tag=rng, rest=rng)
            body = {"model": replica.model, "messages": [user(text)], "max_tokens": rng.randint(1, 64)}
            try:
                await stream(replica.server.address, body, usage=False, may_be_empty=True)
                self.background_requests += 1
            except (ChatFailed, OSError):
                await asyncio.sleep(0.1)  # the jobs report such failures
