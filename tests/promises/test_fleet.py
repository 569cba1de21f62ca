"""Promise 5: unloading frees all memory; models are swapped without losing requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.server import Server, alive, chat_body, wait_for
from tests.tiers import full

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The real model under two names, with memory for one of them."""
    config = tmp_path_factory.mktemp("fleet") / "config.json"
    models = {name: {"path": str(demo_model), "n_ctx": 1024} for name in ("one", "two")}
    manager = {"models": models, "models_max": 1, "min_residence": 1, "spare_worker": False}
    config.write_text(json.dumps({"model_manager": manager}))
    with Server("--config", str(config)) as server:
        yield server


def _ask(server: Server, name: str, text: str, max_tokens: int = 8, deterministic: bool = False) -> str:
    body = chat_body(text, model=name, max_tokens=max_tokens, temperature=0, deterministic=deterministic)
    response = server.client.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    content: str = response.json()["choices"][0]["message"]["content"]
    return content


def test_unloading_frees_the_memory(server: Server) -> None:
    _ask(server, "one", "Say hello.")
    (pid,) = server.workers()
    held = psutil.Process(pid).memory_info().rss
    assert held > 100 << 20
    assert server.client.post("/admin/unload", json={"model": "one"}).json()["models"] == ["one"]
    assert not alive(pid), "the process has ended"
    assert server.workers() == []
    assert psutil.Process(server.process.pid).memory_info().rss < 0.95 * held


@full
def test_models_are_swapped_under_load(server: Server) -> None:
    """Concurrent requests to both models, with memory for one, get the same answers as alone."""

    def count(name: str) -> str:
        return _ask(server, name, "Count to three.", deterministic=True)

    alone = {name: count(name) for name in ("one", "two")}
    with ThreadPoolExecutor(12) as pool:
        asked = [("one", "two")[number % 2] for number in range(12)]
        answers = list(pool.map(count, asked))
    assert answers == [alone[name] for name in asked]
    wait_for(lambda: len(server.workers()) == 1, 20, "one loaded model")


def test_a_hundred_first_requests_cause_one_load(server: Server) -> None:
    server.client.post("/admin/unload", json={"model": "all"})
    before = _loads(server)
    with ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(lambda _: _ask(server, "two", "Say hello.", max_tokens=1), range(100)))
    assert len(answers) == 100
    assert _loads(server) == before + 1


def _loads(server: Server) -> float:
    page = server.client.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in page if line.startswith("paddock_model_loads_total{"))


@full
def test_a_spare_process_is_used_for_the_next_model(demo_model: Path, tmp_path: Path) -> None:
    models = {name: {"path": str(demo_model), "n_ctx": 512} for name in ("one", "two", "three")}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_manager": {"models": models}}))
    with Server("--config", str(config)) as server:
        _ask(server, "one", "Say hello.")
        for loaded, name in enumerate(("two", "three"), 1):
            wait_for(lambda loaded=loaded: len(server.workers()) == loaded + 1, 20, "the spare")  # type: ignore[misc]
            before = set(server.workers())
            _ask(server, name, "Say hello.")
            status = server.client.get("/admin/status").json()["models"]
            (pid,) = [model["pid"] for model in status if model["name"] == name]
            assert pid in before
        spare = set(server.workers()) - {model["pid"] for model in status}
        for pid in spare:  # a spare that dies is replaced
            psutil.Process(pid).kill()
        assert server.client.post("/admin/unload", json={"model": "all"}).json()["models"] == ["one", "two", "three"]
        _ask(server, "one", "Say hello.")


@full
def test_a_spare_process_starts_when_the_only_model_is_unloaded(demo_model: Path) -> None:
    with Server("-m", str(demo_model), "-c", "512") as server:
        _ask(server, "any", "Say hello.")
        (first,) = server.workers()
        server.client.post("/admin/unload", json={"model": "all"})
        wait_for(lambda: server.workers() not in ([], [first]), 20, "the spare")
        (spare,) = server.workers()
        _ask(server, "any", "Say hello.")
        assert server.workers() == [spare], "only one: no other model can be loaded"
