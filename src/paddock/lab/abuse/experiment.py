"""Honest clients, measured in the calm and in the storm, and the verdict."""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from paddock.lab.abuse.attack import Target
from paddock.lab.abuse.storm import Outcomes, storm
from paddock.lab.client import Address, ChatFailed, stream

_MOST_GATEWAY_GROWTH = 256
"""MiB: a few bodies of 32 MiB at once are allowed."""
_MOST_WORKER_GROWTH = 256
"""MiB of all workers together."""
_OTHER_FILES = 256


@dataclass
class Phase:
    """What was seen in one of them."""

    name: str
    first_tokens: list[float] = field(default_factory=list)
    gateway_mib: float = 0.0
    workers_mib: float = 0.0
    """Private memory: the weights are mapped and belong to nobody."""
    most_files: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.first_tokens)

    def told(self, calm: Phase) -> str:
        if not self.first_tokens:
            return f"{self.name}: nobody was served"
        ratio = f", {self.median / calm.median:.1f}x calm" if calm is not self and calm.first_tokens else ""
        return (
            f"{self.name}: {len(self.first_tokens)} answers, first token after {self.median * 1000:.0f} ms "
            f"(median{ratio}), {max(self.first_tokens) * 1000:.0f} ms at worst; at most {self.gateway_mib:.0f} MiB in "
            f"the gateway, {self.workers_mib:.0f} MiB in workers, {self.most_files} open files"
        )


@dataclass
class Experiment:
    address: Address
    """With an honest client's API key."""
    target: Target
    server: psutil.Process
    connections: int
    clients: int
    most_ratio: float
    """Of the median first token in a storm to that in the calm; 0: only reported."""
    outcomes: Outcomes = field(default_factory=Outcomes)
    phases: list[Phase] = field(default_factory=list)

    async def run(self, storms: Sequence[Sequence[str]], seconds: float) -> None:
        """Each phase takes this long: the calm, then a storm of these families after the other."""
        await stream(self.address, _honest())  # the model is loaded before anything is compared
        workers = self._workers()
        calm = await self._phase("calm", seconds)
        for families in storms:
            with storm(self.target, families, self.connections, self.outcomes):
                phase = await self._phase(", ".join(families) if len(storms) > 1 else "storm", seconds)
            self._judge(phase, calm)
        await stream(self.address, _honest())
        if self._workers() != workers:
            self._violate(f"the workers were {workers} and are {self._workers()}")

    async def _phase(self, name: str, seconds: float) -> Phase:
        phase = Phase(name)
        self.phases.append(phase)
        tasks = [asyncio.ensure_future(self._watch(phase))]
        tasks += [asyncio.ensure_future(self._client(phase)) for _ in range(self.clients)]
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                self._violate(f"the run itself failed: {outcome!r}")
        return phase

    async def _client(self, phase: Phase) -> None:
        while True:
            try:
                answer = await stream(self.address, _honest())
                phase.first_tokens.append(answer.first_token)
            except (ChatFailed, OSError) as failure:
                self._violate(f"an honest request failed: {failure}")
            await asyncio.sleep(0.05)

    async def _watch(self, phase: Phase) -> None:
        while True:
            phase.gateway_mib = max(phase.gateway_mib, self.server.memory_info().rss / 2**20)
            phase.workers_mib = max(phase.workers_mib, sum(map(_private_mib, self.server.children())))
            phase.most_files = max(phase.most_files, self.server.num_fds())
            await asyncio.sleep(0.2)

    def _workers(self) -> list[int]:
        return sorted(child.pid for child in self.server.children())

    def _judge(self, phase: Phase, calm: Phase) -> None:
        if not phase.first_tokens or not calm.first_tokens:
            self._violate(f"nobody was served in the {phase.name if calm.first_tokens else calm.name}")
            return
        if self.most_ratio and phase.median > self.most_ratio * calm.median:
            self._violate(
                f"{phase.name}: the first token took {phase.median / calm.median:.1f}x as long as in the calm"
            )
        for whose, most, before, after in (
            ("the gateway", _MOST_GATEWAY_GROWTH, calm.gateway_mib, phase.gateway_mib),
            ("the workers", _MOST_WORKER_GROWTH, calm.workers_mib, phase.workers_mib),
        ):
            if after > before + most:
                self._violate(f"{phase.name}: {whose} grew from {before:.0f} to {after:.0f} MiB, more than {most} MiB")
        if phase.most_files > self.connections + _OTHER_FILES:
            self._violate(f"{phase.name}: {phase.most_files} files were open")

    def _violate(self, what: str) -> None:
        self.outcomes.violations.append(what)
        print(f"VIOLATION {what}", file=sys.stderr, flush=True)


def _honest() -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Say hello"}], "max_tokens": 8, "seed": 1}


def _private_mib(process: psutil.Process) -> float:
    try:
        memory = process.memory_info()
    except psutil.NoSuchProcess:
        return 0.0
    return float(memory.rss - getattr(memory, "shared", 0)) / 2**20
