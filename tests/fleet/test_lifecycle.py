"""Loads and unloads of fake models, with real worker processes: idle timeouts, memory limits and crashes."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import pytest

from paddock.errors import (
    ContextLengthExceeded,
    InsufficientMemory,
    ModelCrashing,
    ModelLoadFailed,
    ModelLoading,
    OutOfMemory,
    PaddockError,
    WorkerCrashed,
)
from paddock.fleet import Catalogue, Fleet, Rules
from paddock.fleet.catalogue.kinds import RequestedKind
from paddock.fleet.lifecycle.starter import Starter
from paddock.types import PoolRequest, TextPrompt
from tests.fleet.fleets import MIB, NO_LIMIT, TWO_SECONDS, begin, model, open_fleet, pid_of, run, states, text, until
from tests.server import alive
from tests.tiers import full

# ── idle timeout ────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_idle_model_is_unloaded_with_its_process() -> None:
    async def scenario() -> None:
        async with open_fleet(model("a", idle_timeout=0.3), model("b", idle_timeout=0.3, pinned=True)) as fleet:
            await text(fleet, "b")
            await text(fleet, "a")
            pid = pid_of(fleet, "a")
            await until(lambda: states(fleet)["a"] == "unloaded", "the unload")
            assert not alive(pid)
            assert states(fleet)["b"] == "loaded"
            assert await text(fleet, "a")

    run(scenario())


def test_a_model_that_was_loaded_without_a_request_is_unloaded() -> None:
    """As `preload` does. Nothing else happens that would check the idle models."""

    async def scenario() -> None:
        async with open_fleet(model("a", idle_timeout=0.3)) as fleet:
            await fleet.load(fleet.catalogue.find("a"))
            assert states(fleet)["a"] == "loaded"
            await until(lambda: states(fleet)["a"] == "unloaded", "the unload")

    run(scenario())


def test_an_unexpected_error_ends_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    async def scenario() -> None:
        async with open_fleet(model("a")) as fleet:
            with monkeypatch.context() as patch:
                patch.setattr(Starter, "start", fail)
                with pytest.raises(ModelLoadFailed, match="a bug"):
                    await text(fleet, "a")
            assert states(fleet)["a"] == "unloaded"
            await asyncio.sleep(1.1)  # a load that failed is not repeated at once
            assert await text(fleet, "a")

    run(scenario())


def test_reading_neither_loads_nor_keeps_loaded() -> None:
    async def scenario() -> None:
        async with open_fleet(model("a", idle_timeout=0.5)) as fleet:
            found = fleet.catalogue.find("a")
            assert await fleet.slots(found) == []
            await text(fleet, "a")

            async def poll() -> None:
                while states(fleet)["a"] != "unloaded":
                    try:
                        await fleet.slots(found)
                    except PaddockError:
                        pass  # it was unloaded meanwhile
                    fleet.info(found)
                    await asyncio.sleep(0.01)

            await asyncio.wait_for(poll(), 100)

    run(scenario())


def test_a_busy_model_stays_loaded() -> None:
    async def scenario() -> None:
        async with open_fleet(model("a", "delay=0.02", idle_timeout=0.05)) as fleet:
            generation = await begin(fleet, "a", TWO_SECONDS)
            pid = pid_of(fleet, "a")
            async for _ in generation:
                assert pid_of(fleet, "a") == pid
            await until(lambda: states(fleet)["a"] == "unloaded", "the unload after the request")

    run(scenario())


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@full
def test_two_models_alternate_in_memory_for_one() -> None:
    rules = Rules(memory_limit={"host": 150 * MIB}, check_memory=False, min_residence=0.3)

    async def scenario() -> None:
        async with open_fleet(model("a", "memory=100"), model("b", "memory=100"), rules=rules) as fleet:
            seen: list[int] = []

            async def poll() -> None:
                while True:
                    seen.append(sum(state != "unloaded" for state in states(fleet).values()))
                    await asyncio.sleep(0.001)

            polling = asyncio.ensure_future(poll())
            answers = await asyncio.gather(*(text(fleet, "ab"[number % 2], str(number)) for number in range(40)))
            more = await asyncio.gather(*(text(fleet, "ab"[number % 2], str(number)) for number in range(40)))
            polling.cancel()
            assert answers == more
            assert max(seen) == 1

    run(scenario())


def test_the_least_recently_used_model_is_unloaded() -> None:
    rules = Rules(memory_limit={"host": 300 * MIB}, check_memory=False)

    async def scenario() -> None:
        models = [model(name, "memory=100") for name in "abcd"]
        async with open_fleet(*models, rules=rules) as fleet:
            for name in "abca":
                await text(fleet, name)
            await text(fleet, "d")
            assert states(fleet) == {"a": "loaded", "b": "unloaded", "c": "loaded", "d": "loaded"}

    run(scenario())


def test_a_model_that_can_never_fit_is_refused() -> None:
    rules = Rules(memory_limit={"host": 150 * MIB}, check_memory=False)

    async def scenario() -> None:
        async with open_fleet(model("a", "memory=200"), model("b", "memory=100", pinned=True), rules=rules) as fleet:
            with pytest.raises(InsufficientMemory, match=r"a needs 0\.20 GiB of host memory.*0\.15 GiB.*-c"):
                await text(fleet, "a")
            assert await text(fleet, "b")
            with pytest.raises(InsufficientMemory, match=r"pinned models \(b\) keep"):
                await text(fleet, "a")

    run(scenario())


def test_free_memory_limits_loads() -> None:
    class Tight:
        """A machine with 250 MiB. Each worker takes 100 MiB."""

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
                await text(fleet, name)
            assert states(fleet) == {"a": "unloaded", "b": "loaded", "c": "loaded"}
        finally:
            await fleet.close()

    run(scenario())


def test_models_max() -> None:
    async def scenario() -> None:
        async with open_fleet(*map(model, "abc"), rules=replace(NO_LIMIT, models_max=2)) as fleet:
            for name in "abcabc":
                await text(fleet, name)
                assert sum(state != "unloaded" for state in states(fleet).values()) <= 2

    run(scenario())


def test_wait_timeout() -> None:
    rules = replace(NO_LIMIT, models_max=1, min_residence=60)

    async def scenario() -> None:
        async with open_fleet(model("a", "delay=0.02"), model("b"), rules=rules) as fleet:
            generation = await begin(fleet, "a", TWO_SECONDS)
            fleet.reload(fleet.catalogue, replace(rules, wait_timeout=0.5))
            with pytest.raises(ModelLoading, match="b is still unloaded"):
                await text(fleet, "b")
            assert len([delta async for delta in generation]) > 5

    run(scenario())


def test_a_cancelled_request_does_not_cancel_the_load() -> None:
    async def scenario() -> None:
        async with open_fleet(model("a", "load=0.5")) as fleet:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(text(fleet, "a"), 0.1)
            await until(lambda: states(fleet)["a"] == "loaded", "the load")
            (status,) = fleet.status()
            assert (status.waiting, status.running) == (0, 0)

    run(scenario())


@full
def test_out_of_memory_unloads_idle_models() -> None:
    async def scenario() -> None:
        async with open_fleet(model("a"), model("b", "alone=1"), model("c", pinned=True)) as fleet:
            await text(fleet, "a")
            assert await text(fleet, "b")
            assert states(fleet)["a"] == "unloaded"
            await fleet.unload(fleet.catalogue.find("b"))
            await text(fleet, "c")
            with pytest.raises(OutOfMemory):
                await text(fleet, "b")

    run(scenario())


# ── crashes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_crash_before_the_first_delta_is_retried() -> None:
    async def scenario() -> None:
        async with open_fleet(model("a", "delay=1")) as fleet:  # so that the worker is killed before its first delta
            generation = await begin(fleet, "a", "say: h")
            os.kill(pid_of(fleet, "a"), signal.SIGKILL)
            assert "".join([delta.text async for delta in generation])

    run(scenario())


def test_a_crash_after_the_first_delta_is_an_error() -> None:
    async def scenario() -> None:
        async with open_fleet(model("a", "delay=0.05")) as fleet:
            generation = await begin(fleet, "a")
            await anext(generation)
            os.kill(pid_of(fleet, "a"), signal.SIGKILL)
            with pytest.raises(WorkerCrashed, match="SIGKILL"):
                [delta async for delta in generation]

    run(scenario())


@full
def test_a_crash_loop_leads_to_a_backoff() -> None:
    async def scenario() -> None:
        async with open_fleet(model("a"), model("b")) as fleet:
            other = await text(fleet, "b")
            errors = []
            for _ in range(6):
                try:
                    await text(fleet, "a", "crash: now")
                except PaddockError as error:
                    errors.append(error)
            assert isinstance(errors[0], WorkerCrashed)
            assert isinstance(errors[-1], ModelCrashing)
            assert "SIGABRT" in errors[-1].message
            assert errors[-1].retry_after is not None
            assert await text(fleet, "b") == other
            await fleet.load(fleet.catalogue.find("a"))  # ignores earlier failures
            assert await text(fleet, "a")

    run(scenario())


@full
def test_a_success_resets_the_failures() -> None:
    async def scenario() -> None:
        async with open_fleet(model("a")) as fleet:
            for _ in range(4):
                assert await text(fleet, "a")
                with pytest.raises(WorkerCrashed):
                    await text(fleet, "a", "crash: now")

    run(scenario())


def test_a_model_that_was_loaded_again_and_unloaded_has_not_failed() -> None:
    async def scenario() -> None:
        async with open_fleet(model("a")) as fleet:
            with pytest.raises(WorkerCrashed):
                await text(fleet, "a", "crash: now")
            assert fleet.status()[0].is_failed
            # It is loaded for a request that its worker refuses, so that none is completed.
            with pytest.raises(ContextLengthExceeded):
                await text(fleet, "a", "word " * 10_000)
            assert states(fleet)["a"] == "loaded"
            await fleet.unload(fleet.catalogue.find("a"))
            await until(lambda: states(fleet)["a"] == "unloaded", "the unload")
            assert not fleet.status()[0].is_failed

    run(scenario())


def test_a_crash_during_an_embedding_is_retried() -> None:
    async def scenario() -> None:
        embedding = replace(model("a", "delay=0.5"), requested=RequestedKind(vectors=True))
        async with open_fleet(embedding) as fleet:
            found = fleet.catalogue.find("a")
            await fleet.load(found)
            inputs = PoolRequest([TextPrompt("hello")], "input")
            asking = asyncio.ensure_future(fleet.pool(found, "embedding", inputs))
            await until(lambda: fleet.status()[0].running == 1, "the embedding request")
            os.kill(pid_of(fleet, "a"), signal.SIGKILL)
            assert len((await asking).vectors) == 1

    run(scenario())
