"""The end of the context: how a prompt that does not fit is refused in each API, also within a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.server import Server, chat_body, events
from tests.tiers import full

_N_CTX = 100
_LONG = "x" * 300


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("-m", f"fake:n_ctx={_N_CTX}") as server:
        yield server


_MESSAGES = {**chat_body(_LONG), "max_tokens": 5}
_BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": chat_body(_LONG),
    "/v1/completions": {"prompt": _LONG},
    "/v1/responses": {"input": _LONG},
    "/completion": {"prompt": _LONG},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", _BODIES)
def test_both_numbers_are_in_the_error_object(server: Server, path: str, stream: bool) -> None:
    response = server.client.post(path, json={**_BODIES[path], "stream": stream})
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["type"], error["code"]) == ("exceed_context_size_error", "context_length_exceeded")
    assert error["n_ctx"] == _N_CTX
    assert error["n_prompt_tokens"] > 300
    for words in ("is too long", "exceeds the available context size", "maximum context length is 100 tokens"):
        assert words in error["message"]


def test_anthropics_clients_find_both_numbers_in_its_words(server: Server) -> None:
    response = server.client.post("/v1/messages", json=_MESSAGES)
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["message"] == f"prompt is too long: {error['n_prompt_tokens']} tokens > {_N_CTX} maximum"


def test_a_prompt_that_is_far_too_long_has_a_lower_bound(server: Server) -> None:
    error = server.client.post("/completion", json={"prompt": "x" * 100_000}).json()["error"]
    assert error["n_prompt_tokens"] >= 1000
    assert "at least" in error["message"]


def test_openais_client_has_the_numbers(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="fake", messages=[{"role": "user", "content": _LONG}])
    assert caught.value.code == "context_length_exceeded"
    assert isinstance(caught.value.body, dict) and caught.value.body["n_ctx"] == _N_CTX


@full
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_stream_that_began_while_the_model_was_loading_ends_with_it(path: str) -> None:
    with (
        Server("-m", f"fake:n_ctx={_N_CTX},load=4") as server,
        server.client.stream("POST", path, json={**_MESSAGES, "stream": True}) as response,
    ):
        assert response.status_code == 200
        *_, (_, last) = events(response)
    error = json.loads(last)["error"]
    assert error["n_ctx"] == _N_CTX
    assert error["type"] == ("exceed_context_size_error" if "chat" in path else "invalid_request_error")


def test_an_input_of_an_embedding_model_has_both_numbers() -> None:
    with Server("-m", f"fake:n_ctx={_N_CTX}", "--embedding") as server:
        response = server.client.post("/v1/embeddings", json={"input": _LONG})
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["n_ctx"]) == (400, "exceed_context_size_error", _N_CTX)
    assert error["n_prompt_tokens"] >= 300
