"""LoRA adapters on a real server: each request uses its own adapters and cache entries."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import tiny_models as tiny
from tests.server import Server, alive, events, wait_for
from tests.tiers import full

PROMPT = "The mare stands by the brook. " * 12
Listed = list[tuple[int, float]]
NONE: Listed = [(0, 0)]
FIRST: Listed = [(0, 1)]
SECOND: Listed = [(1, 1)]
SETS: list[Listed] = [NONE, FIRST, [(0, 0.5)], SECOND, [(0, 1), (1, 0.5)]]


def _lora(listed: Listed) -> list[dict[str, float]]:
    return [{"id": number, "scale": scale} for number, scale in listed]


def _complete(server: Server, prompt: str = PROMPT, **options: Any) -> dict[str, Any]:
    options = {"n_predict": 16, "temperature": 0, "ignore_eos": True, "deterministic": True} | options
    response = server.client.post("/completion", json={"prompt": prompt, **options})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def _answer(server: Server, listed: Listed, prompt: str = PROMPT, **options: Any) -> str:
    return str(_complete(server, prompt, lora=_lora(listed), **options)["content"])


def _options(model: Path, adapters: list[Path]) -> list[str]:
    first, second = adapters
    return ["-m", str(model), "--lora", f'"{first}","{second}"', "--lora-init-without-apply", "-np", "4", "-c", "4096"]


@pytest.fixture(scope="module")
def alone(tiny_models: dict[str, Path], tiny_adapters: list[Path]) -> list[str]:
    """The answer with each set of adapters, as the first request of a new server."""
    answers = []
    for listed in SETS:
        with Server(*_options(tiny_models["llama"], tiny_adapters), "--deterministic") as server:
            answers.append(_answer(server, listed))
    return answers


@pytest.fixture(scope="module", params=["-no-kvu", "-kvu"])
def server(request: pytest.FixtureRequest, tiny_models: dict[str, Path], tiny_adapters: list[Path]) -> Iterator[Server]:
    # With f32 caches the batch shape does not change the text.
    exact = ("-t", "1", "-fa", "off", "-ctk", "f32", "-ctv", "f32")
    with Server(*_options(tiny_models["llama"], tiny_adapters), request.param, *exact) as server:
        yield server


def test_adapters_change_the_answer(tiny_models: dict[str, Path], alone: list[str]) -> None:
    assert len(set(alone)) == len(SETS)
    with Server("-m", str(tiny_models["llama"]), "-np", "4", "-c", "4096", "--deterministic") as server:
        assert _complete(server)["content"] == alone[0]


def test_adapters_do_not_share_cached_prefixes(
    tiny_models: dict[str, Path], tiny_adapters: list[Path], alone: list[str]
) -> None:
    with Server(*_options(tiny_models["llama"], tiny_adapters), "--deterministic") as server:
        for index in (0, 1, 0, 2, 1, 3, 4, 0, 4):
            assert _answer(server, SETS[index]) == alone[index]
        body = _complete(server, lora=_lora(FIRST))
        assert body["timings"]["cache_n"] >= 128, "the same adapters share them"
        assert _complete(server, lora=_lora([(0, 0.25)]))["timings"]["cache_n"] == 0


def test_concurrent_requests_with_different_adapters(
    tiny_models: dict[str, Path], tiny_adapters: list[Path], alone: list[str]
) -> None:
    order = [index for index in range(len(SETS)) for _ in range(3)]
    with (
        Server(*_options(tiny_models["llama"], tiny_adapters), "--deterministic") as server,
        ThreadPoolExecutor(len(order)) as pool,
    ):
        assert list(pool.map(lambda index: _answer(server, SETS[index]), order)) == [alone[index] for index in order]


@full
def test_batches_with_the_same_adapters(server: Server) -> None:
    prompts = [f"Stable {number} " * 30 for number in range(4)]
    asked = [(listed, prompt) for prompt in prompts for listed in (NONE, FIRST, SECOND)]

    def ask(listed: Listed, prompt: str) -> str:
        return _answer(server, listed, prompt, deterministic=False, n_predict=4, cache_prompt=False)

    before = [ask(*one) for one in asked]
    with ThreadPoolExecutor(len(asked)) as pool:
        together = list(pool.map(lambda one: ask(*one), asked))
    assert together == before


@full
def test_new_default_scales_apply_to_later_requests(server: Server) -> None:
    assert _shown(server) == [0, 0]
    plain, first = _complete(server)["content"], _answer(server, FIRST)
    long: dict[str, Any] = {"n_predict": 400, "temperature": 0, "ignore_eos": True, "deterministic": True}
    whole = _complete(server, **long)["content"]
    streamed = {"prompt": PROMPT, "stream": True, **long}
    with server.client.stream("POST", "/completion", json=streamed) as response:
        parts = events(response)
        text = json.loads(next(parts)[1])["content"]
        assert _set(server, FIRST) == {"success": True}
        assert _shown(server) == [1, 0]
        text += "".join(json.loads(data)["content"] for _, data in parts)
    assert text == whole, "a running request keeps its scales"
    assert _complete(server)["content"] == _complete(server, lora=[])["content"] == first
    assert _answer(server, NONE) == plain
    assert _complete(server)["generation_settings"]["lora"] == _lora(FIRST)
    assert server.client.get("/props").json()["default_generation_settings"]["params"]["lora"] == _lora(FIRST)
    assert any(slot.get("params", {}).get("lora") == _lora(FIRST) for slot in server.client.get("/slots").json())
    assert _set(server, []) == {"success": True}
    assert _complete(server)["content"] == plain


@full
def test_default_scales_survive_a_crash(server: Server) -> None:
    first = _answer(server, FIRST)
    _set(server, FIRST)
    (worker,) = server.workers()
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: not alive(worker), 10, "the worker to end")
    wait_for(lambda: server.client.get("/slots").json() == [], 10, "the gateway to detect it")
    assert _shown(server) == [1, 0]
    assert _complete(server)["content"] == first
    _set(server, [])


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions", "/infill"])
def test_every_endpoint_accepts_adapters(server: Server, path: str) -> None:
    prompts: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}]},
        "/infill": {"input_prefix": "a", "input_suffix": "b"},
    }
    body = {**prompts.get(path, {"prompt": "x"}), "max_tokens": 1}
    for lora, param in (
        ([{"id": 0, "scale": 1}, {"id": 2, "scale": 1}], "lora[1].id"),
        ([{"id": -1, "scale": 1}], "lora[0].id"),
        ([{"id": 1, "scale": 1}, {"id": 1, "scale": 0}], "lora[1].id"),
        ([{"id": 0, "scale": 1e9}], "lora[0].scale"),
        ([{"id": 0}], "lora[0].scale"),
        ({"id": 0, "scale": 1}, "lora"),
    ):
        response = server.client.post(path, json={**body, "lora": lora})
        assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text
    if path != "/infill":  # this model does not support infill
        assert server.client.post(path, json={**body, "lora": _lora(SETS[4])}).status_code == 200


def test_adapters_change_the_fingerprint(server: Server) -> None:
    prints = [server.chat("Hello", max_tokens=1, lora=_lora(listed))["system_fingerprint"] for listed in SETS]
    assert len(set(prints)) == len(SETS)
    assert prints[0] == server.chat("Hello", max_tokens=1)["system_fingerprint"]


@full
def test_a_saved_slot_needs_the_same_adapters(
    tiny_models: dict[str, Path], tiny_adapters: list[Path], alone: list[str], tmp_path: Path
) -> None:
    file = {"filename": "slot.bin"}
    saving = ("--slot-save-path", str(tmp_path), "--deterministic")
    with Server(*_options(tiny_models["llama"], tiny_adapters), *saving) as server:
        assert _answer(server, FIRST, id_slot=1) == alone[1]
        assert server.client.post("/slots/1?action=save", json=file).json()["n_saved"] >= 128
    with Server(*_options(tiny_models["llama"], tiny_adapters), *saving) as server:
        assert server.client.post("/slots/0?action=restore", json=file).json()["n_restored"] >= 128
        assert _complete(server)["timings"]["cache_n"] == 0
        again = _complete(server, lora=_lora(FIRST))
        assert (again["content"], again["timings"]["cache_n"] >= 128) == (alone[1], True)
    with Server(*_options(tiny_models["llama"], tiny_adapters[::-1]), *saving) as server:
        refused = server.client.post("/slots/0?action=restore", json=file)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "filename")
        assert "a different one" in refused.json()["error"]["message"]


def test_scales_of_the_command_line(tiny_models: dict[str, Path], tiny_adapters: list[Path], alone: list[str]) -> None:
    first, second = tiny_adapters
    scaled = ("--lora", str(first), "--lora-scaled", f'"{second}:0.5"')
    with Server("-m", str(tiny_models["llama"]), *scaled, "-np", "4", "-c", "4096", "--deterministic") as server:
        assert server.client.get("/lora-adapters").json() == [
            {"id": 0, "path": str(first), "scale": 1.0, "task_name": "task 1", "prompt_prefix": ""},
            {"id": 1, "path": str(second), "scale": 0.5, "task_name": "task 2", "prompt_prefix": ""},
        ]
        assert server.workers() == [], "reading loads nothing"
        assert _complete(server)["content"] == alone[4]


def test_an_adapter_of_another_model_fails_the_load(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    """The header has the right architecture; the weights are for a model with more layers."""
    adapter = tmp_path / "other.gguf"
    tiny.adapter(adapter)
    with Server("-m", str(tiny_models["infill"]), "--lora", str(adapter)) as server:
        for _ in range(2):
            refused = server.client.post("/completion", json={"prompt": "x", "n_predict": 1})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_load_failed")
            assert str(adapter) in refused.json()["error"]["message"]
            assert "wrong base model" in refused.json()["error"]["message"]
        assert server.client.get("/health").status_code == 200


def test_a_missing_adapter_is_named(tiny_models: dict[str, Path], tiny_adapters: list[Path], tmp_path: Path) -> None:
    adapter = tmp_path / "mine.gguf"
    shutil.copy(tiny_adapters[0], adapter)
    with Server("-m", str(tiny_models["llama"]), "--lora", str(adapter)) as server:
        adapter.unlink()
        refused = server.client.post("/completion", json={"prompt": "x", "n_predict": 1})
        assert (refused.status_code, str(adapter) in refused.json()["error"]["message"]) == (503, True)
        shutil.copy(tiny_adapters[0], adapter)
        assert _complete(server)["tokens_predicted"] == 16


def _shown(server: Server) -> list[float]:
    return [adapter["scale"] for adapter in server.client.get("/lora-adapters").json()]


def _set(server: Server, listed: Listed) -> Any:
    return server.client.post("/lora-adapters", json=_lora(listed)).json()
