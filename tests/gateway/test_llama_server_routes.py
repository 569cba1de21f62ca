"""Every route of llama-server answers, in single-model and in router mode; what is not offered says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.gateway.dialects.llama.predict import request_formats
from tests.gateway.key_config import ADMIN, KeyConfig
from tests.server import Server, chat_body

ROUTES: list[str] = json.loads((Path(__file__).parent / "llama_server_routes.json").read_text())
"""The routes that server.cpp of llama.cpp registers, as `METHOD /path`."""
CHAT = {"@requestFormat": "chatCompletions", **chat_body("horse", max_tokens=4, seed=1)}


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_of_llama_server_answers(fake_server: Server, route: str) -> None:
    method, path = route.split(" ")
    path = path.replace(":id_slot", "0")
    content = b"{}" if method == "POST" else None
    with fake_server.client.stream(method, path, content=content) as response:  # some have no end
        assert response.status_code != 405, "the method is allowed"
        if response.status_code == 404:
            response.read()
            assert "there is no route" not in response.text


@pytest.mark.parametrize(
    ("method", "path", "status", "kind", "word"),
    [
        ("GET", "/tools", 403, "feature_disabled", "tools"),
        ("POST", "/tools", 403, "feature_disabled", "tools"),
        ("GET", "/cors-proxy", 403, "feature_disabled", "proxy"),
        ("POST", "/cors-proxy", 403, "feature_disabled", "proxy"),
        ("DELETE", "/models?model=fake", 403, "feature_disabled", "--models-dir"),
    ],
)
def test_what_is_not_offered_says_why(
    fake_server: Server, method: str, path: str, status: int, kind: str, word: str
) -> None:
    response = fake_server.client.request(method, path)
    assert response.status_code == status
    error = response.json()["error"]
    assert error["type"] == kind and word in error["message"]


def test_a_download_needs_a_folder(fake_server: Server) -> None:
    response = fake_server.client.post("/models", json={"model": "ggml-org/tiny"})
    assert response.status_code == 403
    assert "--models-dir" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "id"),
        ({"id": "chatcmpl-1", "action": "stop"}, 400, "action"),
        ({"id": "chatcmpl-1", "action": "reasoning_end"}, 501, None),
    ],
)
def test_control_of_a_completion(fake_server: Server, body: Any, status: int, param: str | None) -> None:
    response = fake_server.client.post("/v1/chat/completions/control", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


# ── Vertex AI's protocol ─────────────────────────────────────────────────────────────────────────────────────────────


def test_predict_answers_each_instance_with_its_route(fake_server: Server) -> None:
    instances = [
        CHAT,
        {"@requestFormat": "/v1/completions", "prompt": "hay", "max_tokens": 2, "stream": True},
        {"@requestFormat": "tokenize", "content": "hay"},
        {"@requestFormat": "chatCompletions", "messages": "none"},
        {"@requestFormat": "nothing"},
        {"prompt": "hay"},
    ]
    response = fake_server.client.post("/predict", json={"instances": instances})
    assert response.status_code == 200, response.text
    chat, completion, tokens, wrong, unknown, unnamed = response.json()["predictions"]
    assert (
        chat["choices"][0]["message"]["content"]
        == fake_server.chat("horse", max_tokens=4, seed=1)["choices"][0]["message"]["content"]
    )
    assert completion["object"] == "text_completion" and completion["choices"][0]["finish_reason"] == "length"
    assert tokens == {"tokens": list(b"hay")}
    assert wrong["error"]["param"] == "messages"
    assert "nothing" in unknown["error"]["message"]
    assert "@requestFormat" in unnamed["error"]["message"]


@pytest.mark.parametrize("body", [{}, {"instances": 1}, {"instances": [1]}, {"instances": [{}] * 129}])
def test_predict_refuses_what_is_no_list_of_requests(fake_server: Server, body: Any) -> None:
    response = fake_server.client.post("/predict", json=body)
    assert response.status_code == 400 and response.json()["error"]["param"].startswith("instances")


def test_predict_below_a_prefix() -> None:
    with Server("-m", "fake:", "--api-prefix", "/llm") as server:
        body = {"instances": [{"@requestFormat": "tokenize", "content": "hay"}]}
        assert server.client.post("/llm/predict", json=body).json() == {"predictions": [{"tokens": list(b"hay")}]}


def test_instances_have_the_rights_of_the_key(config: KeyConfig) -> None:
    config.keys["anna"]["concurrent_requests"] = 1
    with config.server() as server:

        def predict(key: str, **instance: Any) -> Any:
            headers = {"authorization": f"Bearer {key}"}
            response = server.client.post("/predict", json={"instances": [CHAT | instance]}, headers=headers)
            return response.json()

        assert predict("anna-key", model="llama-small")["predictions"][0]["choices"]
        assert predict("anna-key", model="qwen")["predictions"][0]["error"]["type"] == "permission_error"
        load = {"@requestFormat": "/admin/unload", "model": "qwen"}
        assert predict("anna-key", **load)["predictions"][0]["error"]["type"] == "permission_error"
        assert predict("wrong")["error"]["type"] == "authentication_error"
        assert server.client.get("/admin/usage", headers=ADMIN).status_code == 200


@given(st.lists(st.sampled_from(["/v1/completions", "/completions", "/apply-template", "/v1/messages/count_tokens"])))
def test_a_request_format_is_a_path_or_its_camel_case(paths: list[str]) -> None:
    formats = request_formats(paths)
    assert set(formats.values()) == set(paths)
    if "/v1/completions" in paths:
        assert formats["completions"] == "/v1/completions"
    for path, name in (("/apply-template", "applyTemplate"), ("/v1/messages/count_tokens", "messagesCountTokens")):
        assert (name in formats) == (path in paths)
