"""Models that come and go, as real worker processes of the fake engine."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from paddock.errors import (
    InsufficientMemory,
    ModelCrashing,
    ModelLoading,
    ModelNotFound,
    ModelUnloaded,
    OutOfMemory,
    PaddockError,
    WorkerCrashed,
)
from paddock.fleet import Catalogue, Fleet, Generation, Model, Rules
from paddock.fleet.catalogue.kinds import RequestedKind
from paddock.types import ChatPrompt, GenerateRequest, PoolRequest, SamplingParams, TextPrompt
from tests.options import engine_options, new_model
from tests.server import alive

MIB = 1 << 20
SEEDED = SamplingParams(seed=1)
NO_LIMIT = Rules(check_memory=False, min_residence=0.2)


class Unlimited:
    def available(self) -> dict[str, int]:
        return {}

    def taken(self, pid: int) -> dict[str, int]:
        return {}

    def changed(self) -> None:
        pass


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 90))


def model(name: str, options: str = "", **more: Any) -> Model:
    return new_model(name, f"fake:{options}", **{"idle_timeout": 0, **more})


@asynccontextmanager
async def _fleet(*models: Model, rules: Rules = NO_LIMIT) -> AsyncIterator[Fleet]:
    fleet = Fleet(Catalogue(list(models)), rules, Unlimited())
    try:
        yield fleet
    finally:
        await fleet.close()


async def _begin(fleet: Fleet, name: str, text: str = "hello") -> Generation:
    prompt = ChatPrompt([{"role": "user", "content": text}])
    return await fleet.generate(fleet.catalogue.find(name), GenerateRequest(prompt, SEEDED))


async def _text(fleet: Fleet, name: str, text: str = "hello") -> str:
    return "".join([delta.text async for delta in await _begin(fleet, name, text)])


def _states(fleet: Fleet) -> dict[str, str]:
    return {status.model.name: status.state for status in fleet.status()}


def _pid(fleet: Fleet, name: str) -> int:
    (pid,) = [status.pid for status in fleet.status() if status.model.name == name]
    assert pid is not None
    return pid


async def _until(condition: Callable[[], bool], what: str, seconds: float = 100) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        await asyncio.sleep(0.01)


# ── leaving when idle ────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_idle_model_is_unloaded_with_its_process() -> None:
    async def scenario() -> None:
        async with _fleet(model("a", idle_timeout=0.3), model("b", idle_timeout=0.3, pinned=True)) as fleet:
            await _text(fleet, "b")
            await _text(fleet, "a")
            pid = _pid(fleet, "a")
            await _until(lambda: _states(fleet)["a"] == "unloaded", "it to leave")
            assert not alive(pid)
            assert _states(fleet)["b"] == "loaded"
            assert await _text(fleet, "a")

    run(scenario())


def test_reading_neither_loads_nor_keeps_loaded() -> None:
    async def scenario() -> None:
        async with _fleet(model("a", idle_timeout=0.5)) as fleet:
            found = fleet.catalogue.find("a")
            assert await fleet.slots(found) == []
            await _text(fleet, "a")

            async def look() -> None:
                while _states(fleet)["a"] != "unloaded":
                    try:
                        await fleet.slots(found)
                    except PaddockError:
                        pass  # it left while it was looked at
                    fleet.info(found)
                    await asyncio.sleep(0.01)

            await asyncio.wait_for(look(), 100)

    run(scenario())


def test_a_busy_model_stays_loaded() -> None:
    async def scenario() -> None:
        async with _fleet(model("a", "delay=0.02", idle_timeout=0.05)) as fleet:
            generation = await _begin(fleet, "a")
            pid = _pid(fleet, "a")
            async for _ in generation:
                assert _pid(fleet, "a") == pid
            await _until(lambda: _states(fleet)["a"] == "unloaded", "it to leave when that is over")

    run(scenario())


# ── room ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_two_models_share_room_for_one() -> None:
    rules = Rules(memory_limit={"host": 150 * MIB}, check_memory=False, min_residence=0.3)

    async def scenario() -> None:
        async with _fleet(model("a", "memory=100"), model("b", "memory=100"), rules=rules) as fleet:
            seen: list[int] = []

            async def look() -> None:
                while True:
                    seen.append(sum(state != "unloaded" for state in _states(fleet).values()))
                    await asyncio.sleep(0.001)

            looking = asyncio.ensure_future(look())
            answers = await asyncio.gather(*(_text(fleet, "ab"[number % 2], str(number)) for number in range(40)))
            more = await asyncio.gather(*(_text(fleet, "ab"[number % 2], str(number)) for number in range(40)))
            looking.cancel()
            assert answers == more
            assert max(seen) == 1

    run(scenario())


def test_the_least_recently_used_model_is_unloaded() -> None:
    rules = Rules(memory_limit={"host": 300 * MIB}, check_memory=False)

    async def scenario() -> None:
        models = [model(name, "memory=100") for name in "abcd"]
        async with _fleet(*models, rules=rules) as fleet:
            for name in "abca":
                await _text(fleet, name)
            await _text(fleet, "d")
            assert _states(fleet) == {"a": "loaded", "b": "unloaded", "c": "loaded", "d": "loaded"}

    run(scenario())


def test_a_model_that_can_never_fit_is_refused() -> None:
    rules = Rules(memory_limit={"host": 150 * MIB}, check_memory=False)

    async def scenario() -> None:
        async with _fleet(model("a", "memory=200"), model("b", "memory=100", pinned=True), rules=rules) as fleet:
            with pytest.raises(InsufficientMemory, match=r"a needs 0\.20 GiB of host memory.*0\.15 GiB.*-c"):
                await _text(fleet, "a")
            assert await _text(fleet, "b")
            with pytest.raises(InsufficientMemory, match=r"pinned models \(b\) keep"):
                await _text(fleet, "a")

    run(scenario())


def test_free_memory_limits_loads() -> None:
    class Tight:
        """A machine with 250 MiB, of which each worker takes what it says."""

        def __init__(self) -> None:
            self.held: dict[int, int] = {}

        def available(self) -> dict[str, int]:
            return {"host": 250 * MIB - sum(size for pid, size in self.held.items() if alive(pid))}

        def taken(self, pid: int) -> dict[str, int]:
            return {"host": self.held.setdefault(pid, 100 * MIB)}

        def changed(self) -> None:
            pass

    async def scenario() -> None:
        fleet = Fleet(Catalogue([model(name, "memory=100") for name in "abc"]), Rules(min_residence=0), Tight())
        try:
            for name in "abc":
                await _text(fleet, name)
            assert _states(fleet) == {"a": "unloaded", "b": "loaded", "c": "loaded"}
        finally:
            await fleet.close()

    run(scenario())


def test_models_max() -> None:
    async def scenario() -> None:
        async with _fleet(*map(model, "abc"), rules=replace(NO_LIMIT, models_max=2)) as fleet:
            for name in "abcabc":
                await _text(fleet, name)
                assert sum(state != "unloaded" for state in _states(fleet).values()) <= 2

    run(scenario())


def test_wait_timeout() -> None:
    rules = replace(NO_LIMIT, models_max=1, min_residence=60)

    async def scenario() -> None:
        async with _fleet(model("a", "delay=0.05"), model("b"), rules=rules) as fleet:
            generation = await _begin(fleet, "a")
            fleet.reload(fleet.catalogue, replace(rules, wait_timeout=0.5))
            with pytest.raises(ModelLoading, match="b is still unloaded"):
                await _text(fleet, "b")
            assert len([delta async for delta in generation]) > 5

    run(scenario())


def test_a_cancelled_wait_leaves_no_trace() -> None:
    async def scenario() -> None:
        async with _fleet(model("a", "load=0.5")) as fleet:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(_text(fleet, "a"), 0.1)
            await _until(lambda: _states(fleet)["a"] == "loaded", "the load it began")
            (status,) = fleet.status()
            assert (status.waiting, status.running) == (0, 0)

    run(scenario())


# ── crashes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_crash_before_the_first_delta_is_retried() -> None:
    async def scenario() -> None:
        async with _fleet(model("a", "delay=0.3")) as fleet:
            generation = await _begin(fleet, "a", "say: hello")
            os.kill(_pid(fleet, "a"), signal.SIGKILL)
            assert "".join([delta.text async for delta in generation])

    run(scenario())


def test_a_crash_after_the_first_delta_is_an_error() -> None:
    async def scenario() -> None:
        async with _fleet(model("a", "delay=0.05")) as fleet:
            generation = await _begin(fleet, "a")
            await anext(generation)
            os.kill(_pid(fleet, "a"), signal.SIGKILL)
            with pytest.raises(WorkerCrashed, match="SIGKILL"):
                [delta async for delta in generation]

    run(scenario())


def test_a_crash_loop_leads_to_a_backoff() -> None:
    async def scenario() -> None:
        async with _fleet(model("a"), model("b")) as fleet:
            other = await _text(fleet, "b")
            errors = []
            for _ in range(6):
                try:
                    await _text(fleet, "a", "crash: now")
                except PaddockError as error:
                    errors.append(error)
            assert isinstance(errors[0], WorkerCrashed)
            assert isinstance(errors[-1], ModelCrashing)
            assert "SIGABRT" in errors[-1].message
            assert errors[-1].retry_after is not None
            assert await _text(fleet, "b") == other
            await fleet.load(fleet.catalogue.find("a"))  # who insists is served
            assert await _text(fleet, "a")

    run(scenario())


def test_a_success_resets_the_failures() -> None:
    async def scenario() -> None:
        async with _fleet(model("a")) as fleet:
            for _ in range(4):
                assert await _text(fleet, "a")
                with pytest.raises(WorkerCrashed):
                    await _text(fleet, "a", "crash: now")

    run(scenario())


# ── the operator's hand ──────────────────────────────────────────────────────────────────────────────────────────────


def test_unload_waits_for_running_requests() -> None:
    async def scenario() -> None:
        async with _fleet(model("a", "delay=0.02")) as fleet:
            found = fleet.catalogue.find("a")
            assert not await fleet.unload(found)
            generation = await _begin(fleet, "a")
            pid = _pid(fleet, "a")
            unloading = asyncio.ensure_future(fleet.unload(found))
            await _until(lambda: _states(fleet)["a"] == "unloading", "it to be on its way")
            late = asyncio.ensure_future(_text(fleet, "a"))
            assert len([delta async for delta in generation]) > 5
            assert await unloading
            assert await late
            assert _pid(fleet, "a") != pid
            assert not alive(pid)

    run(scenario())


def test_unload_cancels_a_load() -> None:
    async def scenario() -> None:
        async with _fleet(model("a", "load=30")) as fleet:
            waiting = asyncio.ensure_future(_text(fleet, "a"))
            await _until(lambda: _states(fleet)["a"] == "loading", "the load")
            assert await fleet.unload(fleet.catalogue.find("a"))
            with pytest.raises(ModelUnloaded):
                await waiting
            assert _states(fleet)["a"] == "unloaded"

    run(scenario())


@pytest.mark.parametrize("steps", range(5))
def test_a_load_can_be_cancelled_at_any_time(steps: int) -> None:
    """Also before it has made its first step."""

    async def scenario() -> None:
        async with _fleet(model("a", "load=30")) as fleet:
            waiting = asyncio.ensure_future(_text(fleet, "a"))
            while _states(fleet)["a"] != "loading":  # noqa: ASYNC110 (to the step)
                await asyncio.sleep(0)
            for _ in range(steps):
                await asyncio.sleep(0)
            assert await fleet.unload(fleet.catalogue.find("a"))
            with pytest.raises(ModelUnloaded):
                await waiting
            assert _states(fleet)["a"] == "unloaded"

    run(scenario())


def test_a_reload_touches_only_changed_models() -> None:
    async def scenario() -> None:
        same, changed, gone = model("same"), model("changed", "delay=0.02"), model("gone", "delay=0.02")
        async with _fleet(same, changed, gone) as fleet:
            await _text(fleet, "same")
            running = [await _begin(fleet, "changed"), await _begin(fleet, "gone")]
            before = {name: _pid(fleet, name) for name in ("same", "changed", "gone")}
            changed = replace(changed, options=engine_options(n_ctx=512))
            told = fleet.reload(Catalogue([same, changed, model("new")]), NO_LIMIT)
            assert sorted(told) == ["changed", "gone", "new"]
            assert fleet.reload(Catalogue([same, changed, model("new")]), NO_LIMIT) == []
            late = asyncio.ensure_future(_text(fleet, "changed"))
            for generation in running:
                assert len([delta async for delta in generation]) > 5
            assert await late
            info = fleet.info(fleet.catalogue.find("changed"))
            assert info is not None
            assert info.n_ctx == 512
            assert _pid(fleet, "same") == before["same"]
            with pytest.raises(ModelNotFound):
                await _text(fleet, "gone")
            assert await _text(fleet, "new")
            await _until(lambda: not alive(before["gone"]) and not alive(before["changed"]), "the old ones to go")

    run(scenario())


def test_preload() -> None:
    async def scenario() -> None:
        async with _fleet(model("a", preload=True), model("b", pinned=True), model("c")) as fleet:
            fleet.preload()
            await _until(
                lambda: _states(fleet) == {"a": "loaded", "b": "loaded", "c": "unloaded"}, "what is to be loaded"
            )

    run(scenario())


def test_watch() -> None:
    async def scenario() -> None:
        async with _fleet(model("a")) as fleet:
            told: list[str] = []

            async def watch() -> None:
                async for status in fleet.watch():
                    told.append(status.state)

            watching = asyncio.ensure_future(watch())
            await asyncio.sleep(0)
            await _text(fleet, "a")
            await fleet.unload(fleet.catalogue.find("a"))
            await _until(lambda: told[-1:] == ["unloaded"], "all of it to be told")
            watching.cancel()
            assert [state for at, state in enumerate(told) if told[at - 1 : at] != [state]] == [
                "unloaded", "loading", "loaded", "unloading", "unloaded"
            ]  # fmt: skip

    run(scenario())


def test_out_of_memory_unloads_idle_models() -> None:
    async def scenario() -> None:
        async with _fleet(model("a"), model("b", "alone=1"), model("c", pinned=True)) as fleet:
            await _text(fleet, "a")
            assert await _text(fleet, "b")
            assert _states(fleet)["a"] == "unloaded"
            await fleet.unload(fleet.catalogue.find("b"))
            await _text(fleet, "c")
            with pytest.raises(OutOfMemory):
                await _text(fleet, "b")

    run(scenario())


def test_a_crash_during_an_embedding_is_retried() -> None:
    async def scenario() -> None:
        vectors = RequestedKind(vectors=True)
        async with _fleet(model("a", "delay=0.5", requested=vectors)) as fleet:
            found = fleet.catalogue.find("a")
            await fleet.load(found)
            inputs = PoolRequest([TextPrompt("hello")], "input")
            asking = asyncio.ensure_future(fleet.pool(found, "embedding", inputs))
            await _until(lambda: fleet.status()[0].running == 1, "it to be computed")
            os.kill(_pid(fleet, "a"), signal.SIGKILL)
            assert len((await asking).vectors) == 1

    run(scenario())


@pytest.mark.parametrize("steps", range(4))
def test_removing_a_model_ends_its_waits(steps: int) -> None:
    async def scenario() -> None:
        async with _fleet(model("a", "load=30"), model("b")) as fleet:
            found = fleet.catalogue.find("a")
            waiting = asyncio.ensure_future(_text(fleet, "a"))
            for _ in range(steps):
                await asyncio.sleep(0.005)
            fleet.reload(Catalogue([model("b")]), NO_LIMIT)
            assert "a" in fleet.progress(found)
            with pytest.raises((ModelUnloaded, ModelNotFound)):
                await waiting

    run(scenario())
