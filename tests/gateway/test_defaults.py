"""Defaults of requests, from llama-server's flags and from the settings; llama-server's routes without /v1."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import tiny_models as tiny
from tests.forking import run_command
from tests.server import Server
from tests.tiers import full

_CHAT = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("-m", "fake:", "--temp", "0.5", "--seed", "42", "-n", "4", "--ignore-eos", "--top-k", "7") as server:
        yield server


def _post(server: Server, path: str, body: dict[str, Any]) -> Any:
    response = server.client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_props_shows_the_defaults(server: Server) -> None:
    params = server.client.get("/props").json()["default_generation_settings"]["params"]
    assert {name: params[name] for name in ("temperature", "seed", "n_predict", "ignore_eos", "top_k", "top_p")} == {
        "temperature": 0.5,
        "seed": 42,
        "n_predict": 4,
        "ignore_eos": True,
        "top_k": 7,
        "top_p": 0.95,
    }


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completion", {"prompt": "hello"}),
        ("/v1/completions", {"prompt": "hello"}),
        ("/v1/chat/completions", _CHAT),
        ("/v1/responses", {"input": "hello"}),
    ],
)
def test_a_bare_request_has_the_defaults(server: Server, path: str, body: dict[str, Any]) -> None:
    first, second = _post(server, path, body), _post(server, path, body)
    usage = first.get("usage", {})
    tokens = first.get("tokens_predicted") or usage.get("completion_tokens") or usage["output_tokens"]
    assert tokens == 4
    same = "content" if "content" in first else "choices" if "choices" in first else "output_text"
    assert first.get(same) == second.get(same)


def test_the_values_of_a_request_win(server: Server) -> None:
    answer = _post(server, "/completion", {"prompt": "hello", "n_predict": 2, "temperature": 0.25, "top_k": None})
    assert answer["tokens_predicted"] == 2
    assert answer["generation_settings"]["temperature"] == 0.25
    assert answer["generation_settings"]["top_k"] == 7
    chat = _post(server, "/v1/chat/completions", {**_CHAT, "max_completion_tokens": 3})
    assert chat["usage"]["completion_tokens"] == 3


def _config(folder: Path, defaults: Any, **models: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps({"model_manager": {"defaults": defaults, "models": models}}), "utf-8")
    return file


def test_a_model_adds_its_own_defaults(tmp_path: Path) -> None:
    one = {"path": "fake:", "defaults": {"top_k": 9}}
    file = _config(tmp_path, {"top_k": 5, "top_p": 0.5}, one=one, two={"path": "fake:"})
    with Server("--config", str(file), "--top-p", "0.25") as server:
        for name, top_k in (("one", 9), ("two", 5)):
            params = server.client.get(f"/props?model={name}").json()["default_generation_settings"]["params"]
            assert (params["top_k"], params["top_p"]) == (top_k, 0.25)


@full
def test_a_constraint_of_a_request_replaces_the_default(tmp_path: Path, demo_model: Path) -> None:
    with Server("-m", str(demo_model), "-c", "512", "-n", "8", "--temp", "0", "--grammar", 'root ::= "yes"') as server:
        assert _post(server, "/completion", {"prompt": "hello"})["content"] == "yes"
        assert _post(server, "/completion", {"prompt": "hello", "regex": "no"})["content"] == "no"


@pytest.mark.parametrize(
    ("defaults", "problem"),
    [
        ({"temperature": -1}, "model_manager.defaults.temperature: "),
        ({"temprature": 1}, "model_manager.defaults.temprature: "),
        ({"model": "x"}, "'model' cannot have a default"),
        ({"grammar": "a", "regex": "b"}, "grammar and regex are mutually exclusive"),
    ],
)
def test_a_wrong_default_ends_the_start(tmp_path: Path, defaults: dict[str, Any], problem: str) -> None:
    file = _config(tmp_path, defaults)
    done = run_command("serve", "-m", "fake:", "--config", str(file), "--port", "0")
    assert done.returncode == 1
    assert problem in done.stderr


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chat/completions", _CHAT),
        ("/responses", {"input": "hello"}),
        ("/messages", {**_CHAT, "max_tokens": 2}),
        ("/chat/completions/input_tokens", _CHAT),
        ("/responses/input_tokens", {"input": "hello"}),
        ("/messages/count_tokens", _CHAT),
    ],
)
def test_a_route_without_v1_answers_as_the_one_with_it(server: Server, path: str, body: dict[str, Any]) -> None:
    plain, versioned = _post(server, path, body), _post(server, f"/v1{path}", body)
    assert plain.keys() == versioned.keys()
    assert plain.get("input_tokens") == versioned.get("input_tokens")


def test_an_error_has_the_shape_of_its_dialect_without_v1(server: Server) -> None:
    wrong = server.client.post("/messages", json={"max_tokens": 2})
    assert wrong.status_code == 400
    assert wrong.json()["type"] == "error"


def test_the_sampling_defaults_of_a_file_come_last(tmp_path: Path) -> None:
    metadata: dict[str, Any] = {"temp": 0.25, "top_k": 11, "top_p": "0.5", "sequence": "top_k;temp", "mirostat": 7}
    tiny.llama(tmp_path / "m.gguf", layers=1, sampling=metadata)
    config = {"model_manager": {"models": {"m": {"path": str(tmp_path / "m.gguf"), "defaults": {"top_k": 12}}}}}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    with Server("--config", str(tmp_path / "config.json"), "--top-p", "0.75") as server:
        expected = {
            "temperature": 0.25,
            "top_k": 12,
            "top_p": 0.75,
            "samplers": ["top_k", "temperature"],
            "mirostat": 0,  # 7 is not possible
        }
        shown = server.client.get("/props").json()["default_generation_settings"]["params"]
        assert {name: shown[name] for name in expected} == expected
        for _ in range(2):  # the first request loads the model
            bare = _post(server, "/completion", {"prompt": "a", "n_predict": 1})["generation_settings"]
            assert {name: bare[name] for name in expected} == expected
        own = _post(server, "/completion", {"prompt": "a", "n_predict": 1, "temperature": 0.5})
        assert own["generation_settings"]["temperature"] == 0.5
