"""One model both chats and embeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.server import Server, chat_body, events
from tests.tiers import full

EMBEDDINGS = "/v1/embeddings"
EXACT = ("-t", "1", "-fa", "off", "-ctk", "f32", "-ctv", "f32", "-c", "512")


def _vectors(server: Server, inputs: Any) -> list[list[float]]:
    response = server.client.post(EMBEDDINGS, json={"input": inputs})
    assert response.status_code == 200, response.text
    return [item["embedding"] for item in response.json()["data"]]


def test_six_routes_on_one_model(fake_server: Server) -> None:
    """The routes that a llama-server is usually used for."""
    client = fake_server.client
    assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}).json()["choices"]
    assert fake_server.chat("hi", max_tokens=2)["choices"]
    assert len(_vectors(fake_server, ["horse", "hay"])) == 2
    assert client.post("/embedding", json={"content": "horse"}).json()[0]["embedding"]
    for path in ("/v1/models", "/health", "/metrics"):
        assert client.get(path).status_code == 200
    (card,) = client.get("/v1/models").json()["data"]
    assert card["kind"] == "generation"
    assert client.post("/v1/rerank", json={"query": "a", "documents": ["b"]}).status_code == 501


@full
def test_the_vectors_are_those_of_an_embedding_server(tiny_models: dict[str, Path]) -> None:
    model = str(tiny_models["llama"])
    with Server("-m", model, *EXACT) as both, Server("-m", model, "--embedding", *EXACT) as alone:
        texts = ["the horse", "the mare on the hill", "in"]
        for one, other in zip(_vectors(both, texts), _vectors(alone, texts), strict=True):
            assert one == pytest.approx(other, abs=1e-4)
        before = both.chat("the horse", max_tokens=20, temperature=0)
        body = chat_body("the horse", max_tokens=20, temperature=0, stream=True)
        with both.client.stream("POST", "/v1/chat/completions", json=body) as response:
            stream = events(response)
            first = next(stream)
            assert len(_vectors(both, texts * 20)) == 60, "while an answer is generated"
            chunks = [json.loads(data) for _, data in [first, *stream] if data != "[DONE]"]
        text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
        assert text == before["choices"][0]["message"]["content"]


def test_its_memory_is_counted_once_it_is_used(tiny_models: dict[str, Path]) -> None:
    def memory() -> int:
        """Without cached prefixes, which are written to host memory at any time."""
        (model,) = server.client.get("/admin/status").json()["models"]
        host: int = model["memory"]["host"] - model["prefix_memory"]
        return host

    with Server("-m", str(tiny_models["llama"]), *EXACT) as server:
        server.chat("hi", max_tokens=1)
        before = memory()
        _vectors(server, "hi")
        assert memory() > before
        again = memory()
        _vectors(server, "hi")
        assert memory() == again, "counted once"
        server.client.post("/admin/unload", json={"model": "llama"})
        assert memory() <= before, "freed with the model"


def test_an_input_must_fit_and_dimensions_too(fake_server: Server) -> None:
    for body, param in (
        ({"input": "y" * 600}, "input"),
        ({"input": "x", "dimensions": 27}, "dimensions"),
        ({"input": ""}, "input"),
    ):
        response = fake_server.client.post(EMBEDDINGS, json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_a_model_with_replicas_embeds_too(tmp_path: Path) -> None:
    settings = {"models": {"both": {"path": "fake:", "replicas": {"a": {}, "b": {}}}}}
    (tmp_path / "c.json").write_text(json.dumps({"model_manager": settings}))
    with Server("--config", str(tmp_path / "c.json")) as server:
        response = server.client.post(EMBEDDINGS, json={"model": "both", "input": "horse"})
        assert response.status_code == 200, response.text
