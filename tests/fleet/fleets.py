"""A fleet of fake models with real worker processes, for tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from paddock.fleet import Catalogue, Fleet, Generation, Model, Rules
from paddock.types import ChatPrompt, GenerateRequest, SamplingParams
from tests.options import new_model

MIB = 1 << 20
SEEDED = SamplingParams(seed=1)
TWO_SECONDS = "say: " + "x" * 100
"""The time of its answer with `delay=0.02`."""
NO_LIMIT = Rules(check_memory=False, min_residence=0.2)


class Unlimited:
    def available(self) -> dict[str, int]:
        return {}

    def taken(self, pid: int) -> dict[str, int]:
        return {}

    def changed(self) -> None:
        pass


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 200))


def model(name: str, options: str = "", **changes: Any) -> Model:
    return new_model(name, f"fake:{options}", **{"idle_timeout": 0, **changes})


@asynccontextmanager
async def open_fleet(*models: Model, rules: Rules = NO_LIMIT) -> AsyncIterator[Fleet]:
    fleet = Fleet(Catalogue(list(models)), rules, Unlimited())
    try:
        yield fleet
    finally:
        await fleet.close()


async def begin(fleet: Fleet, name: str, message: str = "hello") -> Generation:
    prompt = ChatPrompt([{"role": "user", "content": message}])
    return await fleet.generate(fleet.catalogue.find(name), GenerateRequest(prompt, SEEDED))


async def text(fleet: Fleet, name: str, message: str = "hello") -> str:
    return "".join([delta.text async for delta in await begin(fleet, name, message)])


def states(fleet: Fleet) -> dict[str, str]:
    return {status.model.name: status.state for status in fleet.status()}


def pid_of(fleet: Fleet, name: str) -> int:
    (pid,) = [status.pid for status in fleet.status() if status.model.name == name]
    assert pid is not None
    return pid


async def until(condition: Callable[[], bool], what: str, seconds: float = 100) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        await asyncio.sleep(0.01)
