"""The types and the words of errors that clients of llama-server match on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.server import Server, chat_body

_CHAT = "/v1/chat/completions"
CASES: dict[str, tuple[tuple[str, ...], str, str, Any, int, str, str]] = {
    # flags, method, path, body, status, type, words
    "wrong key": (("--api-key", "k"), "GET", "/props", None, 401, "authentication_error", "Invalid API Key"),
    "route": ((), "GET", "/nothing", None, 404, "not_found_error", "File Not Found"),
    "slots": (("--no-slots",), "GET", "/slots", None, 501, "not_supported_error", "Start it with `--slots`"),
    "metrics": (("--no-metrics",), "GET", "/metrics", None, 501, "not_supported_error", "Start it with `--metrics`"),
    "props": ((), "POST", "/props", {}, 501, "not_supported_error", "Start it with `--props`"),
    "slot files": (
        *((), "POST", "/slots/0?action=save", {"filename": "a"}),
        *(501, "not_supported_error", "Start it with `--slot-save-path`"),
    ),
    "rerank": (
        *((), "POST", "/rerank", {"query": "a", "documents": ["b"]}),
        *(501, "not_supported_error", "does not support reranking. Start it with `--reranking`"),
    ),
    "infill": (
        *((), "POST", "/infill", {"input_prefix": "a", "input_suffix": "b"}),
        *(501, "not_supported_error", "Infill is not supported by this model"),
    ),
    "query": (("--reranking",), "POST", "/rerank", {"documents": ["b"]}, 400, "invalid_request_error", "query"),
    "documents": (("--reranking",), "POST", "/rerank", {"query": "a"}, 400, "invalid_request_error", '"documents"'),
    "input": (
        *(("--embedding",), "POST", "/v1/embeddings", {}),
        *(400, "invalid_request_error", '"input" or "content" must be provided'),
    ),
    "messages": ((), "POST", _CHAT, {}, 400, "invalid_request_error", "messages"),
    "no list": ((), "POST", _CHAT, {"messages": "hi"}, 400, "invalid_request_error", "messages"),
    "range": ((), "POST", "/completion", {"prompt": "a", "n_predict": -2}, 400, "invalid_request_error", "n_predict"),
}


@pytest.mark.parametrize("flags", sorted({case[0] for case in CASES.values()}))
def test_errors_have_llama_servers_types_and_words(flags: tuple[str, ...]) -> None:
    with Server("-m", "fake:", *flags) as server:
        for name, (needed, method, path, body, status, kind, words) in CASES.items():
            if needed == flags:
                response = server.client.request(method, path, json=body)
                error = response.json()["error"]
                assert (response.status_code, error["type"]) == (status, kind), (name, error)
                assert words in error["message"], name


def test_a_model_that_the_router_does_not_know(tmp_path: Path) -> None:
    """OpenAI's status, and the words of llama-server's router."""
    with Server("--models-dir", str(tmp_path)) as server:
        response = server.client.post(_CHAT, json=chat_body("hi", model="none"))
        error = response.json()["error"]
        assert (response.status_code, error["type"]) == (404, "invalid_request_error")
        assert "model 'none' not found" in error["message"]


@pytest.mark.parametrize("path", [_CHAT, "/completion", "/v1/responses", "/v1/messages", "/v1/embeddings", "/rerank"])
def test_invalid_json_is_the_clients_error_in_every_dialect(fake_server: Server, path: str) -> None:
    response = fake_server.client.post(path, content=b'{"prompt": ')
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert "JSON" in response.json()["error"]["message"]
