from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from paddock.fleet.catalogue.demo import find_demo
from tests import tiny_hybrids
from tests import tiny_models as tiny
from tests.server import Server
from tests.tiers import register_profiles, start_order
from tests.used_library import CHOICE, describe, pinned

register_profiles()

# Several processes run the tests, and their models share the cores: threads that wait for each other by spinning would
# bring both to a halt (docs/lab.md).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A shell that starts the tests in the background has this ignored, and so would all that they start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


_FOR_TESTS = ("PADDOCK_LIBLLAMA", "PADDOCK_LLAMA_SERVER", "PADDOCK_RPC_SERVER", "PADDOCK_TEST_MODELS", CHOICE)


def pytest_configure() -> None:
    os.environ.update(pinned(os.environ))


def pytest_report_header() -> str:
    return describe()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: start_order(item.path))


@pytest.fixture(scope="session")
def fake_server() -> Iterator[Server]:
    """A server with the fake engine, shared by tests that only ask it questions."""
    with Server("-m", "fake:") as server:
        yield server


@pytest.fixture(scope="session")
def demo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the demo model, shared by tests that only ask it questions."""
    slots = tmp_path_factory.mktemp("slots")
    with Server("-c", "1024", "--slot-save-path", str(slots)) as server:  # so that an answer without a limit has one
        yield server


@pytest.fixture(scope="session")
def demo_model() -> Path:
    path = find_demo()
    assert path is not None, "the demo model is missing: paddock pull demo"
    return path


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models with random weights, one for each kind of memory; they load in a moment."""
    folder = tmp_path_factory.mktemp("models")
    kinds: dict[str, Callable[[Path], None]] = {
        "llama": tiny.llama,
        "draft": partial(tiny.llama, layers=2),
        "experts": tiny.experts,
        "infill": tiny.infill,
        "repository": partial(tiny.infill, files=True),
        "caller": tiny.caller,
        "latent": tiny.latent,
        "positions": tiny.positions,
        "sliding_window": tiny.sliding_window,
        "recurrent": tiny.recurrent,
        "hybrid": tiny.hybrid,
        "delta_net": tiny_hybrids.delta_net,
        "mamba2": tiny_hybrids.mamba2,
        "convolution": tiny_hybrids.convolution,
        "embedding": tiny.embedding,
        "reranking": tiny.reranking,
    }
    for name, write in kinds.items():
        write(folder / f"{name}.gguf")
    return {name: folder / f"{name}.gguf" for name in kinds}


@pytest.fixture(scope="session")
def tiny_adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two LoRA adapters for the tiny model `llama`."""
    folder = tmp_path_factory.mktemp("adapters")
    paths = [folder / "first.gguf", folder / "second, with a comma.gguf"]
    for seed, path in enumerate(paths, 1):
        tiny.adapter(path, seed=seed)
    return paths


@pytest.fixture(scope="session")
def real_models() -> Path:
    """A folder of further real models, on machines that have one."""
    folder = os.environ.get("PADDOCK_TEST_MODELS")
    if not folder:
        pytest.skip("PADDOCK_TEST_MODELS names no folder of models")
    return Path(folder)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The developer's own PADDOCK_* settings must not reach the tests."""
    for name in os.environ:
        if name.startswith("PADDOCK_") and name not in _FOR_TESTS:
            monkeypatch.delenv(name)
