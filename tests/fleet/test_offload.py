from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.config import ModelManagerSettings, Settings
from paddock.fleet import Catalogue, Fleet, Rules, open_catalogue
from paddock.fleet.catalogue.model import Model
from paddock.fleet.memory.fit import Room
from paddock.fleet.memory.offload import fit_model, margin
from paddock.fleet.process.environment import has_gpu
from tests.server import Server

LAYERS = 4  # of the tiny model, including its output
GIB = 1 << 30


@pytest.fixture(scope="module")
def model(tiny_models: dict[str, Path]) -> Model:
    settings = ModelManagerSettings(model=tiny_models["llama"], n_gpu_layers="auto")
    (found,) = open_catalogue(settings)
    return found


class Roomy:
    """A machine with a large GPU."""

    def available(self) -> dict[str, int]:
        return {"gpu": 80 * GIB}

    def taken(self, pid: int) -> dict[str, int]:
        return {}

    def changed(self) -> None:
        pass


def _on_device(model: Model, layers: int) -> int:
    options = msgspec.structs.replace(model.options, n_gpu_layers=layers)
    estimate = replace(model, options=options).estimate(gpu=True)
    assert estimate is not None
    return estimate.device.total


@given(more=st.integers(-(1 << 20), 1 << 26))
def test_the_most_layers_that_fit(model: Model, more: int) -> None:
    free = (512 << 20) + more
    layers = fit_model(model, Room(free, None)).options.n_gpu_layers
    room = free - margin(free)
    assert -1 <= layers < LAYERS
    assert layers == 0 or _on_device(model, layers) <= room
    assert layers == -1 or _on_device(model, layers + 1) > room


def test_a_margin_of_the_settings(tiny_models: dict[str, Path]) -> None:
    settings = ModelManagerSettings(model=tiny_models["llama"], fit_target=[100, 50])
    (found,) = open_catalogue(settings)
    needed = _on_device(found, -1)
    assert fit_model(found, Room(needed + (150 << 20), None)).options.n_gpu_layers == -1
    assert fit_model(found, Room(needed + (150 << 20) - 1, None)).options.n_gpu_layers == LAYERS - 1


@given(st.integers(0, 1 << 40))
def test_margin(free: int) -> None:
    assert margin(free) >= 512 << 20
    assert margin(free) >= free * 0.05 - 1


def test_no_gpu_and_enough_memory(model: Model) -> None:
    for room, layers in ((Room(0, None), 0), (Room(80 * GIB, None), -1), (Room(None, None), -1)):
        assert fit_model(model, room).options.n_gpu_layers == layers


def test_granted_memory_counts_while_loaded(model: Model) -> None:
    async def scenario() -> None:
        fleet = Fleet(Catalogue([model]), Rules(spare_worker=False), Roomy())
        try:
            assert "gpu" not in fleet.status()[0].needs
            await fleet.load(model)
            assert fleet.status()[0].needs["gpu"] == _on_device(model, -1)
            await fleet.unload(model)
            assert "gpu" not in fleet.status()[0].needs
        finally:
            await fleet.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_model_is_fitted_to_the_memory_limit(tiny_models: dict[str, Path]) -> None:
    """Without a GPU only the context can be smaller. The tiny model needs 24 MiB with its trained context."""
    if has_gpu():
        pytest.skip("this build knows GPUs")
    flags = ["--memory-limit", "88M", "--fit-ctx", "256", "-np", "8", "-kvu"]
    with Server("-m", str(tiny_models["llama"]), "-ngl", "auto", *flags) as server:
        response = server.client.post("/completion", json={"prompt": "the", "n_predict": 2})
        assert response.status_code == 200, response.text
        props = server.client.get("/props").json()
        assert 256 <= props["placement"]["n_ctx"] < 16384
    lines = [line for line in server.output if "fitted to the free memory" in line]
    assert len(lines) == 1, server.output
    assert f"n_ctx={props['placement']['n_ctx']}" in lines[0]


def test_auto_setting(tiny_models: dict[str, Path]) -> None:
    path = str(tiny_models["llama"])
    models = {"a": {"path": path, "n_gpu_layers": "auto"}, "b": {"path": path, "n_gpu_layers": 2}, "c": {"path": path}}
    settings = Settings.model_validate({"model_manager": {"models": models}})
    found = {
        model.name: (model.auto_layers, model.options.n_gpu_layers) for model in open_catalogue(settings.model_manager)
    }
    assert found == {"a": (True, -1), "b": (False, 2), "c": (False, -1)}
