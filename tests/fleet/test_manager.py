"""The fleet with real worker processes of the fake engine."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from paddock.errors import ContextLengthExceeded, ModelLoadFailed, ServerStopping, WorkerCrashed
from paddock.fleet import Catalogue, Fleet
from paddock.fleet.process.environment import environment
from paddock.types import GenerateRequest, SlotAction, TextPrompt
from tests.fleet.fleets import until
from tests.options import new_model


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 200))


@asynccontextmanager
async def _fleet(*paths: str, load_timeout: float = 30) -> AsyncIterator[Fleet]:
    fleet = Fleet(Catalogue([new_model(path, path, load_timeout=load_timeout) for path in paths]))
    try:
        yield fleet
    finally:
        await fleet.close()


async def _text(fleet: Fleet, path: str, text: str = "hello") -> str:
    generation = await fleet.generate(fleet.catalogue.find(path), GenerateRequest(TextPrompt(text)))
    return "".join([delta.text async for delta in generation])


def test_concurrent_requests_cause_one_load() -> None:
    async def scenario() -> None:
        async with _fleet("fake:load=0.2") as fleet:
            answers = await asyncio.gather(*(_text(fleet, "fake:load=0.2") for _ in range(50)))
            assert len(answers) == 50
            assert [status.state for status in fleet.status()] == ["loaded"]
            pid = fleet.status()[0].pid
            assert await _text(fleet, "fake:load=0.2")
            assert fleet.status()[0].pid == pid

    run(scenario())


def test_reading_loads_nothing() -> None:
    async def scenario() -> None:
        async with _fleet("fake:", "fake:delay=0") as fleet:
            for _ in range(3):
                assert [status.state for status in fleet.status()] == ["unloaded", "unloaded"]

    run(scenario())


def test_a_killed_worker_is_replaced() -> None:
    async def scenario() -> None:
        async with _fleet("fake:delay=0.05", "fake:") as fleet:
            model = fleet.catalogue.find("fake:delay=0.05")
            other = await _text(fleet, "fake:")  # first: a load may take longer than the generation
            generation = await fleet.generate(model, GenerateRequest(TextPrompt("hello")))
            pid = fleet.status()[0].pid
            assert pid is not None
            with pytest.raises(WorkerCrashed, match="SIGKILL"):
                await anext(generation)
                os.kill(pid, signal.SIGKILL)
                while True:
                    await anext(generation)
            assert await _text(fleet, "fake:") == other
            assert await _text(fleet, "fake:delay=0.05")

    run(scenario())


def test_a_failed_load_can_be_retried() -> None:
    async def scenario() -> None:
        async with _fleet("fake:nonsense=1") as fleet:
            for _ in range(2):
                with pytest.raises(ModelLoadFailed, match="no option 'nonsense'"):
                    await _text(fleet, "fake:nonsense=1")
            assert fleet.status()[0].state == "unloaded"

    run(scenario())


def test_load_timeout() -> None:
    async def scenario() -> None:
        async with _fleet("fake:load=30", load_timeout=0.3) as fleet:
            with pytest.raises(ModelLoadFailed, match="within"):
                await _text(fleet, "fake:load=30")

    run(scenario())


def test_illegal_instruction_disables_repacking() -> None:
    async def scenario() -> None:
        async with _fleet("fake:sigill=1") as fleet:
            assert await _text(fleet, "fake:sigill=1")

    run(scenario())


def test_drain_fails_running_requests_and_refuses_new_ones() -> None:
    async def scenario() -> None:
        async with _fleet("fake:delay=0.05") as fleet:
            model = fleet.catalogue.find("fake:delay=0.05")
            generation = await fleet.generate(model, GenerateRequest(TextPrompt("hello")))
            await fleet.drain(0.1)
            with pytest.raises(ServerStopping):
                async for _ in generation:
                    pass
            with pytest.raises(ServerStopping):
                await _text(fleet, "fake:delay=0.05")
            pid = fleet.status()[0].pid
            assert pid is not None
            await fleet.close()
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    run(scenario())


@pytest.mark.parametrize("grace", [30.0, 0.0])
def test_drain_lets_a_slot_action_wait(grace: float) -> None:
    async def scenario() -> None:
        async with _fleet("fake:delay=0.02") as fleet:
            model = fleet.catalogue.find("fake:delay=0.02")
            await fleet.generate(model, GenerateRequest(TextPrompt("hello"), id_slot=0))
            erasing = asyncio.ensure_future(fleet.act_on_slot(model, SlotAction(0, "erase")))
            await asyncio.sleep(0)  # it is sent
            assert not erasing.done()
            await fleet.drain(grace)
            if grace:
                assert (await erasing).tokens == 0
            else:
                with pytest.raises(ServerStopping):
                    await erasing

    run(scenario())


def test_closing_during_a_load_leaves_no_process() -> None:
    async def scenario() -> None:
        async with _fleet("fake:load=30") as fleet:
            asking = asyncio.ensure_future(_text(fleet, "fake:load=30"))
            await until(lambda: fleet.status()[0].state == "loading", "the load")
            await fleet.close()
            with pytest.raises(ServerStopping):
                await asking

    run(scenario())


def test_a_prompt_that_is_too_long_is_refused() -> None:
    async def scenario() -> None:
        async with _fleet("fake:n_ctx=32") as fleet:
            with pytest.raises(ContextLengthExceeded, match=r"101 tokens.*is 32 tokens"):
                await _text(fleet, "fake:n_ctx=32", "x" * 100)
            with pytest.raises(ContextLengthExceeded, match=r"at least \d+ tokens.*is 32 tokens"):
                await _text(fleet, "fake:n_ctx=32", "x" * 10_000_000)
            assert await _text(fleet, "fake:n_ctx=32", "hi")

    run(scenario())


def test_workers_of_a_cuda_build_get_the_real_libstdcpp_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    assert "LD_PRELOAD" not in environment()
    (tmp_path / "libggml-cuda.so.0").touch()
    assert environment()["LD_PRELOAD"] == "libstdc++.so.6"
    monkeypatch.setenv("LD_PRELOAD", "mine.so")
    assert environment()["LD_PRELOAD"] == "mine.so", "the user's value wins"
