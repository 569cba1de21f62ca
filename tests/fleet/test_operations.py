"""The operator's actions: unload, reload, preload and watch."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from paddock.errors import ModelLoadFailed, ModelNotFound, ModelUnloaded
from paddock.fleet import Catalogue
from tests.fleet.fleets import NO_LIMIT, TWO_SECONDS, begin, model, open_fleet, pid_of, run, states, text, until
from tests.options import engine_options
from tests.server import alive
from tests.tiers import full


def test_unload_waits_for_running_requests() -> None:
    async def scenario() -> None:
        async with open_fleet(model("a", "delay=0.02")) as fleet:
            found = fleet.catalogue.find("a")
            assert not await fleet.unload(found)
            generation = await begin(fleet, "a", TWO_SECONDS)
            pid = pid_of(fleet, "a")
            unloading = asyncio.ensure_future(fleet.unload(found))
            await until(lambda: states(fleet)["a"] == "unloading", "the unload")
            late = asyncio.ensure_future(text(fleet, "a", "say: x"))
            assert len([delta async for delta in generation]) > 5
            assert await unloading
            assert await late
            assert pid_of(fleet, "a") != pid
            assert not alive(pid)

    run(scenario())


def test_unload_cancels_a_load() -> None:
    async def scenario() -> None:
        async with open_fleet(model("a", "load=30")) as fleet:
            waiting = asyncio.ensure_future(text(fleet, "a"))
            await until(lambda: states(fleet)["a"] == "loading", "the load")
            assert await fleet.unload(fleet.catalogue.find("a"))
            with pytest.raises(ModelUnloaded):
                await waiting
            assert states(fleet)["a"] == "unloaded"

    run(scenario())


def test_a_request_after_the_unload_of_a_loading_model_loads_it_again() -> None:
    """Also if it comes before the cancelled load has ended."""

    async def scenario() -> None:
        async with open_fleet(model("a", "load=1")) as fleet:
            waiting = asyncio.ensure_future(text(fleet, "a"))
            await until(lambda: states(fleet)["a"] == "loading", "the load")
            unloading = asyncio.ensure_future(fleet.unload(fleet.catalogue.find("a")))
            await asyncio.sleep(0)
            assert await text(fleet, "a", "say: x") == "x"
            assert await unloading
            with pytest.raises(ModelUnloaded):
                await waiting

    run(scenario())


@pytest.mark.parametrize("steps", range(5))
def test_a_load_can_be_cancelled_at_any_time(steps: int) -> None:
    """Also before its task has run its first step."""

    async def scenario() -> None:
        async with open_fleet(model("a", "load=30")) as fleet:
            waiting = asyncio.ensure_future(text(fleet, "a"))
            while states(fleet)["a"] != "loading":  # noqa: ASYNC110 (step by step)
                await asyncio.sleep(0)
            for _ in range(steps):
                await asyncio.sleep(0)
            assert await fleet.unload(fleet.catalogue.find("a"))
            with pytest.raises(ModelUnloaded):
                await waiting
            assert states(fleet)["a"] == "unloaded"

    run(scenario())


@full
def test_a_reload_touches_only_changed_models() -> None:
    async def scenario() -> None:
        same, changed, gone = model("same"), model("changed", "delay=0.02"), model("gone", "delay=0.02")
        async with open_fleet(same, changed, gone) as fleet:
            for name in ("same", "changed", "gone"):  # loads take longer than the answers
                await text(fleet, name, "say: x")
            running = [await begin(fleet, name, TWO_SECONDS) for name in ("changed", "gone")]
            before = {name: pid_of(fleet, name) for name in ("same", "changed", "gone")}
            changed = replace(changed, options=engine_options(n_ctx=512))
            names = fleet.reload(Catalogue([same, changed, model("new")]), NO_LIMIT)
            assert sorted(names) == ["changed", "gone", "new"]
            assert fleet.reload(Catalogue([same, changed, model("new")]), NO_LIMIT) == []
            late = asyncio.ensure_future(text(fleet, "changed", "say: x"))
            for generation in running:
                assert len([delta async for delta in generation]) > 5
            assert await late
            info = fleet.info(fleet.catalogue.find("changed"))
            assert info is not None
            assert info.n_ctx == 512
            assert pid_of(fleet, "same") == before["same"]
            with pytest.raises(ModelNotFound):
                await text(fleet, "gone")
            assert await text(fleet, "new")
            await until(lambda: not alive(before["gone"]) and not alive(before["changed"]), "the old workers to end")

    run(scenario())


@full
def test_a_reload_to_a_broken_model_is_refused_during_the_unload() -> None:
    """The same error as after the unload, and without waiting for the requests of the old model."""

    async def scenario() -> None:
        async with open_fleet(model("a", "delay=0.02")) as fleet:
            generation = await begin(fleet, "a")
            fleet.reload(Catalogue([replace(model("a"), known_problem="a part is missing")]), NO_LIMIT)
            assert states(fleet)["a"] == "unloading"
            with pytest.raises(ModelLoadFailed, match="cannot load a: a part is missing"):
                await begin(fleet, "a")
            assert states(fleet)["a"] == "unloading"
            assert len([delta async for delta in generation]) > 5

    run(scenario())


def test_preload() -> None:
    async def scenario() -> None:
        async with open_fleet(model("a", preload=True), model("b", pinned=True), model("c")) as fleet:
            fleet.preload()
            await until(
                lambda: states(fleet) == {"a": "loaded", "b": "loaded", "c": "unloaded"}, "the preloaded models"
            )

    run(scenario())


def test_watch() -> None:
    async def scenario() -> None:
        async with open_fleet(model("a")) as fleet:
            seen: list[str] = []

            async def watch() -> None:
                async for status in fleet.watch():
                    seen.append(status.state)

            watching = asyncio.ensure_future(watch())
            await asyncio.sleep(0)
            await text(fleet, "a")
            await fleet.unload(fleet.catalogue.find("a"))
            await until(lambda: seen[-1:] == ["unloaded"], "the last change")
            watching.cancel()
            assert [state for at, state in enumerate(seen) if seen[at - 1 : at] != [state]] == [
                "unloaded", "loading", "loaded", "unloading", "unloaded"
            ]  # fmt: skip

    run(scenario())


@pytest.mark.parametrize("steps", range(4))
def test_removing_a_model_fails_its_waiting_requests(steps: int) -> None:
    async def scenario() -> None:
        async with open_fleet(model("a", "load=30"), model("b")) as fleet:
            found = fleet.catalogue.find("a")
            waiting = asyncio.ensure_future(text(fleet, "a"))
            for _ in range(steps):
                await asyncio.sleep(0.005)
            fleet.reload(Catalogue([model("b")]), NO_LIMIT)
            assert "a" in fleet.progress(found)
            with pytest.raises((ModelUnloaded, ModelNotFound)):
                await waiting

    run(scenario())
