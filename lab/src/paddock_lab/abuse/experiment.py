"""Measures honest clients without and beside attackers, and checks the limits."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from paddock_lab.abuse.storm import storm
from paddock_lab.client import Address, ChatFailed, get, post, stream
from paddock_lab.stress import Outcomes

_MOST_GATEWAY_GROWTH = 512
"""MiB: buffered bodies may take 256 (`server.max_buffered_bytes`), and as much again while they are parsed."""
_MOST_WORKER_GROWTH = 256
"""MiB of all workers together."""
_OTHER_FILES = 256


@dataclass
class Phase:
    """Measurements of one phase."""

    name: str
    times: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in _HONEST})
    """Seconds by kind of request: to the first token, or to the end of the response of `/tokenize`."""
    gateway_mib: float = 0.0
    workers_mib: float = 0.0
    """Private memory, without the mapped weights."""
    most_files: int = 0

    def median(self, kind: str) -> float:
        return statistics.median(self.times[kind])

    def report(self, idle: Phase) -> str:
        memory = (
            f"{self.name}: at most {self.gateway_mib:.0f} MiB in the gateway, {self.workers_mib:.0f} MiB in workers, "
            f"{self.most_files} open files"
        )
        return "\n".join([memory, *(f"    {kind}: {self._report(kind, idle)}" for kind in self.times)])

    def _report(self, kind: str, idle: Phase) -> str:
        times = self.times[kind]
        if not times or not idle.times[kind]:
            return f"{len(times)} answers"
        median, worst = self.median(kind) * 1000, max(times) * 1000
        ratio = "" if idle is self else f", {self.median(kind) / idle.median(kind):.1f}x idle"
        return f"{len(times)} answers, {median:.0f} ms (median{ratio}), {worst:.0f} ms (worst)"


@dataclass
class Experiment:
    honest: Address
    """With an honest client's API key."""
    attacker: Address
    admin: Address
    server: psutil.Process
    connections: int
    clients: int
    most_ratio: float
    """Limit of the median first token under attack divided by the idle one; 0: only reported."""
    outcomes: Outcomes = field(default_factory=Outcomes)
    phases: list[Phase] = field(default_factory=list)

    async def run(self, storms: Sequence[Sequence[str]], seconds: float) -> None:
        """One phase without attackers, then one for each list of families. Each takes `seconds`."""
        for ask in _HONEST.values():
            await ask(self.honest)  # loads the model before anything is compared
        workers = self._workers()
        idle = await self._phase("idle", seconds)
        for families in storms:
            with storm(self.attacker, families, self.connections, self.outcomes):
                phase = await self._phase(", ".join(families) if len(storms) > 1 else "under attack", seconds)
            self._check(phase, idle)
        await _chat(self.honest)
        if self._workers() != workers:
            self.outcomes.violate(f"the workers were {workers} and are {self._workers()}")

    async def _phase(self, name: str, seconds: float) -> Phase:
        phase = Phase(name)
        self.phases.append(phase)
        tasks = [asyncio.ensure_future(self._watch(phase))]
        kinds = ["chat"] * self.clients + [kind for kind in _HONEST if kind != "chat"]
        tasks += [asyncio.ensure_future(self._client(phase, kind)) for kind in kinds]
        tasks.append(asyncio.ensure_future(self._poll_as_admin()))
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                self.outcomes.violate(f"the experiment raised an exception: {outcome!r}")
        return phase

    async def _client(self, phase: Phase, kind: str) -> None:
        while True:
            try:
                phase.times[kind].append(await _HONEST[kind](self.honest))
            except (ChatFailed, OSError) as failure:
                self.outcomes.violate(f"an honest request failed: {failure}")
            await asyncio.sleep(0.05)

    async def _poll_as_admin(self) -> None:
        """Health checks and admin requests must always be answered."""
        while True:
            for path in ("/health", "/admin/status"):
                try:
                    await get(self.admin, path)
                except (ChatFailed, OSError) as failure:
                    self.outcomes.violate(f"the admin's GET {path} failed: {failure}")
            await asyncio.sleep(0.5)

    async def _watch(self, phase: Phase) -> None:
        while True:
            phase.gateway_mib = max(phase.gateway_mib, self.server.memory_info().rss / 2**20)
            phase.workers_mib = max(phase.workers_mib, sum(map(_private_mib, self.server.children())))
            phase.most_files = max(phase.most_files, self.server.num_fds())
            await asyncio.sleep(0.2)

    def _workers(self) -> list[int]:
        return sorted(child.pid for child in self.server.children())

    def _check(self, phase: Phase, idle: Phase) -> None:
        for kind in _HONEST:
            if not phase.times[kind] or not idle.times[kind]:
                empty = phase.name if idle.times[kind] else idle.name
                self.outcomes.violate(f"{empty}: no honest request was answered ({kind})")
                continue
            ratio = phase.median(kind) / idle.median(kind)
            if self.most_ratio and kind in _WITH_FIRST_TOKEN and ratio > self.most_ratio:
                self.outcomes.violate(f"{phase.name}: an honest client waited {ratio:.1f}x as long as idle ({kind})")
        for what, most, before, after in (
            ("the gateway", _MOST_GATEWAY_GROWTH, idle.gateway_mib, phase.gateway_mib),
            ("the workers", _MOST_WORKER_GROWTH, idle.workers_mib, phase.workers_mib),
        ):
            if after > before + most:
                growth = f"from {before:.0f} to {after:.0f} MiB, more than {most} MiB"
                self.outcomes.violate(f"{phase.name}: {what} grew {growth}")
        if phase.most_files > self.connections + _OTHER_FILES:
            self.outcomes.violate(f"{phase.name}: {phase.most_files} files were open")


async def _chat(address: Address, **options: Any) -> float:
    body = {"messages": [{"role": "user", "content": "Say hello"}], "max_tokens": 8, "seed": 1, **options}
    return (await stream(address, body)).first_token


async def _schema(address: Address) -> float:
    return await _chat(address, json_schema={"type": "object", "properties": {"name": {"type": "string"}}})


async def _tokenize(address: Address) -> float:
    begun = time.perf_counter()
    await post(address, "/tokenize", {"content": "hello"})
    return time.perf_counter() - begun


_HONEST: dict[str, Callable[[Address], Awaitable[float]]] = {"chat": _chat, "schema": _schema, "word": _tokenize}
"""The requests of honest clients; each returns its duration in seconds."""
_WITH_FIRST_TOKEN = frozenset({"chat", "schema"})
"""Kinds that `--ratio` limits. `/tokenize` of a word takes 4 ms when idle: one other body is a multiple of that."""


def _private_mib(process: psutil.Process) -> float:
    try:
        memory = process.memory_info()
    except psutil.NoSuchProcess:
        return 0.0
    return float(memory.rss - getattr(memory, "shared", 0)) / 2**20
