"""One run: which server is put under which load when, and what is noted about it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from paddock_lab.client import ChatFailed
from paddock_lab.clock import Clock, doubts
from paddock_lab.servers import Server, processor_seconds
from paddock_lab.serving.report import Table
from paddock_lab.serving.scenarios import SCENARIOS, Session, Settings, wake

_BUSY_WHEN_IDLE = 0.05

T = TypeVar("T")


@dataclass
class Bench:
    settings: Settings
    values: Mapping[str, str]
    scenario_seconds: float
    start_seconds: float
    table: Table = field(default_factory=Table)
    notes: list[str] = field(default_factory=list)
    """Whatever makes a number doubtful."""
    failed: bool = False

    def round(self, servers: list[Server], scenarios: list[str], number: int) -> None:
        for scenario in scenarios:
            for server in rotated(servers, number):
                self._measure(scenario, server, number)

    def idle(self, servers: list[Server]) -> None:
        """A server that works without being asked would slow the one whose turn it is."""
        begun, before = time.perf_counter(), [processor_seconds(server) for server in servers]
        time.sleep(1.5)
        passed = time.perf_counter() - begun
        for server, used in zip(servers, before, strict=True):
            share = (processor_seconds(server) - used) / passed
            if share > _BUSY_WHEN_IDLE:
                self._note(f"{server.name} takes {share:.0%} of a core while idle")

    def wake(self, scenario: str, server: Server) -> bool:
        session = self._session("wake", server, 0)
        return self._attempt(scenario, server, partial(wake, session)) is not None

    def _measure(self, scenario: str, server: Server, number: int) -> None:
        if not self.wake(scenario, server):
            return
        session = self._session(scenario, server, number)
        begun = Clock.read([server])
        measures = self._attempt(scenario, server, partial(SCENARIOS[scenario], session))
        if measures is None:
            return
        ended = Clock.read([server])
        self.table.add(scenario, server.name, number, measures)
        client, others = ended.shares_since(begun)
        say(
            f"round {number + 1}  {scenario:10} {server.name:12} {ended.wall - begun.wall:6.1f} s  "
            f"client {client:.0%} of a core, others {others:.0%}"
        )
        for doubt in doubts(client, others if server.process else 0.0):
            self._note(f"{scenario} of {server.name}: {doubt}")
        if session.short:
            self._note(f"{scenario} of {server.name}: {session.short} answers were shorter than asked for")

    def _attempt(self, scenario: str, server: Server, action: Callable[[], Awaitable[T]]) -> T | None:
        """What the action returns; None if it failed, which is noted."""

        async def bounded() -> T:
            async with asyncio.timeout(self.scenario_seconds):
                return await action()

        try:
            return asyncio.run(bounded())
        except (ChatFailed, OSError, ExceptionGroup) as failure:
            while isinstance(failure, ExceptionGroup):
                failure = failure.exceptions[0]
            self._fail(scenario, server, f"{type(failure).__name__} {failure}")
            return None

    def _session(self, scenario: str, server: Server, number: int) -> Session:
        return Session(server.address, self.settings, f"{scenario} {number}")

    def _fail(self, scenario: str, server: Server, why: str) -> None:
        self.failed = True
        self._note(f"{scenario} of {server.name} failed: {why}")

    def _note(self, text: str) -> None:
        self.notes.append(text)
        say(text)


def rotated(servers: list[Server], by: int) -> list[Server]:
    at = by % len(servers) if servers else 0
    return servers[at:] + servers[:at]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
