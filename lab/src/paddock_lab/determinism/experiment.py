"""One run: the same jobs on two replicas, cold and warm, alone and among others."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from paddock_lab.client import Address, ChatFailed, stream
from paddock_lab.determinism.comparing import Heard
from paddock_lab.determinism.jobs import Job
from paddock_lab.progress import Advance
from paddock_lab.report import Recording
from paddock_lab.words import user, words


@dataclass(frozen=True)
class Replica:
    name: str
    address: Address
    model: str
    """What it calls the model."""
    about: str


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
    heard: Heard | None
    """None where the request failed."""
    error: str = ""


@dataclass
class Experiment:
    jobs: Sequence[Job]
    recording: Recording
    temperature: float
    max_tokens: int
    load: int
    """When it is not alone, a job has so many others beside it, and as many requests that nobody compares."""
    seconds: float
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    observations: list[Observation] = field(default_factory=list)
    disturbances: int = 0

    async def run(self, replicas: Sequence[Replica], condition: Condition, advance: Advance) -> None:
        """Every job once on each replica, in an order of its own; one replica after another, since two that compute at
        the same time on one machine may bring each other to a halt.
        """
        for replica in replicas:
            await self._on(replica, condition, advance)

    async def _on(self, replica: Replica, condition: Condition, advance: Advance) -> None:
        loaded = condition.load == "loaded"
        others = [asyncio.create_task(self._disturb(replica)) for _ in range(self.load if loaded else 0)]
        jobs = iter(self.chance.sample(self.jobs, len(self.jobs)))

        async def take_jobs() -> None:
            for job in jobs:
                await self._ask(replica, condition, job)
                advance(f"{condition}: {replica.name}")

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.load if loaded else 1):
                    group.create_task(take_jobs())
        finally:
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    async def _ask(self, replica: Replica, condition: Condition, job: Job) -> None:
        body = {
            "model": replica.model,
            "messages": job.messages,
            "seed": job.seed,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
        }
        begun, heard, error = time.perf_counter(), None, ""
        try:
            async with asyncio.timeout(self.seconds):
                answer = await stream(replica.address, body, usage=False, may_be_empty=True)
            heard = Heard(tuple(answer.deltas), answer.finish_reason)
        except (ChatFailed, OSError) as failure:
            error = str(failure) or type(failure).__name__
        self.observations.append(Observation(job, replica.name, condition, heard, error))
        took = round(time.perf_counter() - begun, 4)
        self.recording.add(
            {"job": job.id, "kind": job.kind, "seed": job.seed, "seed_from": job.seed_from, "replica": replica.name}
            | {**asdict(condition), "seconds": took, "error": error}
            | ({"deltas": [text for _, text in heard.deltas], "finish_reason": heard.finish_reason} if heard else {})
        )

    async def _disturb(self, replica: Replica) -> None:
        """Ask for one thing after another, short and long, until it is enough."""
        chance = random.Random()
        while True:
            text = words(chance.randint(5, 300), tag=chance, rest=chance)
            body = {"model": replica.model, "messages": [user(text)], "max_tokens": chance.randint(1, 64)}
            try:
                await stream(replica.address, body, usage=False, may_be_empty=True)
                self.disturbances += 1
            except (ChatFailed, OSError):
                await asyncio.sleep(0.1)  # it is busy, or gone; the jobs will tell
