"""Honest clients, measured in the calm and in the storm, and the verdict."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from paddock_lab.abuse.attack import Target, read_status
from paddock_lab.abuse.storm import Outcomes, storm
from paddock_lab.client import Address, ChatFailed, post, stream

_MOST_GATEWAY_GROWTH = 512
"""MiB: bodies under way may take 256 (`server.max_buffered_bytes`), and as much again while they are parsed."""
_MOST_WORKER_GROWTH = 256
"""MiB of all workers together."""
_OTHER_FILES = 256


@dataclass
class Phase:
    """What was seen in one of them."""

    name: str
    times: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in _HONEST})
    """Seconds to the first token of answers; to the end of questions about text."""
    gateway_mib: float = 0.0
    workers_mib: float = 0.0
    """Private memory: the weights are mapped and belong to nobody."""
    most_files: int = 0

    def median(self, kind: str) -> float:
        return statistics.median(self.times[kind])

    def told(self, calm: Phase) -> str:
        memory = (
            f"{self.name}: at most {self.gateway_mib:.0f} MiB in the gateway, {self.workers_mib:.0f} MiB in workers, "
            f"{self.most_files} open files"
        )
        return "\n".join([memory, *(f"    {kind}: {self._told(kind, calm)}" for kind in self.times)])

    def _told(self, kind: str, calm: Phase) -> str:
        times = self.times[kind]
        if not times or not calm.times[kind]:
            return f"{len(times)} answers"
        median, worst = self.median(kind) * 1000, max(times) * 1000
        ratio = "" if calm is self else f", {self.median(kind) / calm.median(kind):.1f}x calm"
        return f"{len(times)} answers, {median:.0f} ms (median{ratio}), {worst:.0f} ms at worst"


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
    operator: Address
    """With an admin key."""
    outcomes: Outcomes = field(default_factory=Outcomes)
    phases: list[Phase] = field(default_factory=list)

    async def run(self, storms: Sequence[Sequence[str]], seconds: float) -> None:
        """Each phase takes this long: the calm, then a storm of these families after the other."""
        for ask in _HONEST.values():
            await ask(self.address)  # the model is loaded before anything is compared
        workers = self._workers()
        calm = await self._phase("calm", seconds)
        for families in storms:
            with storm(self.target, families, self.connections, self.outcomes):
                phase = await self._phase(", ".join(families) if len(storms) > 1 else "storm", seconds)
            self._judge(phase, calm)
        await _chat(self.address)
        if self._workers() != workers:
            self._violate(f"the workers were {workers} and are {self._workers()}")

    async def _phase(self, name: str, seconds: float) -> Phase:
        phase = Phase(name)
        self.phases.append(phase)
        tasks = [asyncio.ensure_future(self._watch(phase))]
        kinds = ["chat"] * self.clients + [kind for kind in _HONEST if kind != "chat"]
        tasks += [asyncio.ensure_future(self._client(phase, kind)) for kind in kinds]
        tasks.append(asyncio.ensure_future(self._operate()))
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                self._violate(f"the run itself failed: {outcome!r}")
        return phase

    async def _client(self, phase: Phase, kind: str) -> None:
        while True:
            try:
                phase.times[kind].append(await _HONEST[kind](self.address))
            except (ChatFailed, OSError) as failure:
                self._violate(f"an honest request failed: {failure}")
            await asyncio.sleep(0.05)

    async def _operate(self) -> None:
        """Whatever happens, health checks and admins get an answer."""
        while True:
            for path in ("/health", "/admin/status"):
                try:
                    reader, writer = await asyncio.open_connection(self.operator.host, self.operator.port)
                    writer.write(f"{self.operator.head('GET', path, 'close')}\r\n".encode())
                    status = await read_status(reader)
                    writer.close()
                except OSError as error:
                    status = str(error)
                if status != "200":
                    self._violate(f"the operator asked for {path} and got {status}")
            await asyncio.sleep(0.5)

    async def _watch(self, phase: Phase) -> None:
        while True:
            phase.gateway_mib = max(phase.gateway_mib, self.server.memory_info().rss / 2**20)
            phase.workers_mib = max(phase.workers_mib, sum(map(_private_mib, self.server.children())))
            phase.most_files = max(phase.most_files, self.server.num_fds())
            await asyncio.sleep(0.2)

    def _workers(self) -> list[int]:
        return sorted(child.pid for child in self.server.children())

    def _judge(self, phase: Phase, calm: Phase) -> None:
        for kind in _HONEST:
            if not phase.times[kind] or not calm.times[kind]:
                self._violate(f"nobody was served ({kind}) in the {phase.name if calm.times[kind] else calm.name}")
                continue
            ratio = phase.median(kind) / calm.median(kind)
            if self.most_ratio and kind in _ANSWERS and ratio > self.most_ratio:
                self._violate(f"{phase.name}: an honest client waited {ratio:.1f}x as long as in the calm ({kind})")
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


async def _chat(address: Address, **options: Any) -> float:
    body = {"messages": [{"role": "user", "content": "Say hello"}], "max_tokens": 8, "seed": 1, **options}
    return (await stream(address, body)).first_token


async def _schema(address: Address) -> float:
    return await _chat(address, json_schema={"type": "object", "properties": {"name": {"type": "string"}}})


async def _word(address: Address) -> float:
    begun = time.perf_counter()
    await post(address, "/tokenize", {"content": "hello"})
    return time.perf_counter() - begun


_HONEST: dict[str, Callable[[Address], Awaitable[float]]] = {"chat": _chat, "schema": _schema, "word": _word}
"""What honest clients ask for, and how long they waited."""
_ANSWERS = frozenset({"chat", "schema"})
"""Those whose first token is judged. A question about a word takes 4 ms in the calm: one other body is a multiple."""


def _private_mib(process: psutil.Process) -> float:
    try:
        memory = process.memory_info()
    except psutil.NoSuchProcess:
        return 0.0
    return float(memory.rss - getattr(memory, "shared", 0)) / 2**20
