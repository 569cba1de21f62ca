"""Which models each API key may use, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.gateway.key_config import ADMIN, KeyConfig, chat, headers_of, refusal_of
from tests.server import Server, chat_body, events


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with KeyConfig(tmp_path_factory.mktemp("keys")).server() as server:
        yield server


def test_a_key_may_use_its_models_only(shared: Server) -> None:
    for model in ("llama-small", "small", "llama-small.gguf"):
        assert chat(shared, "anna", model).status_code == 200
    assert "'qwen'" in refusal_of(chat(shared, "anna", "qwen"), 403, "permission_denied")
    assert "'llama-small'" in refusal_of(chat(shared, "ben", "small"), 403, "permission_denied")
    assert chat(shared, "ben", "qwen", max_tokens=1).status_code == 200, "a pattern matches an alias too"
    refusal_of(chat(shared, "anna", "none"), 404, "model_not_found")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/responses/input_tokens", {"input": "x"}),
        ("/v1/messages", chat_body("x", max_tokens=1)),
        ("/v1/messages/count_tokens", chat_body("x")),
        ("/completion", {"prompt": "x"}),
        ("/infill", {"input_prefix": "x", "input_suffix": "y"}),
        ("/tokenize", {"content": "x"}),
        ("/detokenize", {"tokens": [1]}),
        ("/apply-template", chat_body("x")),
        ("/v1/embeddings", {"input": "x"}),
        ("/embedding", {"content": "x"}),
        ("/rerank", {"query": "x", "documents": ["y"]}),
    ],
)
def test_no_route_accepts_another_model(shared: Server, path: str, body: dict[str, Any]) -> None:
    response = shared.client.post(path, json={**body, "model": "llama-small"}, headers=headers_of("ben"))
    assert response.status_code == 403, response.text
    assert "'llama-small'" in response.json()["error"]["message"]


def test_lists_show_the_models_that_the_key_may_use(shared: Server) -> None:
    names = {
        name: [card["id"] for card in shared.client.get("/v1/models", headers=headers).json()["data"]]
        for name, headers in (("anna", headers_of("anna")), ("ben", headers_of("ben")), ("boss", ADMIN))
    }
    assert names == {
        "anna": ["llama-small", "vectors"],
        "ben": ["qwen"],
        "boss": ["llama-small", "qwen", "vectors"],
    }
    for path in ("/v1/models/qwen", "/props?model=qwen", "/lora-adapters?model=qwen"):
        assert shared.client.get(path, headers=headers_of("ben")).status_code == 200
        refusal_of(shared.client.get(path, headers=headers_of("anna")), 403, "permission_denied")
    with shared.client.stream("GET", "/models/sse", headers=headers_of("ben")) as response:
        assert json.loads(next(events(response))[1])["model"] == "qwen"


def test_the_openai_package_with_a_key(shared: Server) -> None:
    def client(key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{shared.url}/v1", api_key=key, max_retries=0)

    def ask(client: openai.OpenAI, model: str) -> Any:
        return client.chat.completions.create(model=model, messages=[{"role": "user", "content": "say: hi"}])

    with client("anna-key") as anna, client("wrong") as wrong:
        assert ask(anna, "small").choices[0].message.content == "hi"
        assert [model.id for model in anna.models.list()] == ["llama-small", "vectors"]
        assert anna.embeddings.create(model="vectors", input="x").usage.prompt_tokens > 0
        with pytest.raises(openai.PermissionDeniedError, match="qwen"):
            ask(anna, "qwen")
        with pytest.raises(openai.AuthenticationError):
            ask(wrong, "small")


def test_an_anthropic_client_gets_an_error_in_its_format(shared: Server) -> None:
    body = chat_body("say: hi", model="qwen", max_tokens=2)
    response = shared.client.post("/v1/messages", json=body, headers={"x-api-key": "anna-key"})
    assert (response.status_code, response.json()["error"]["type"]) == (403, "permission_error")
    response = shared.client.post("/v1/messages", json=body, headers={"x-api-key": "ben-key"})
    assert response.status_code == 200
