"""The promises for embeddings and reranking: batching, cancellation and crashes."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.server import Server, wait_for
from tests.tiers import full

EMBEDDINGS = "/v1/embeddings"


def _embed(server: Server, inputs: Any) -> httpx.Response:
    return server.client.post(EMBEDDINGS, json={"input": inputs})


def _waiting(server: Server) -> int:
    """Queued tokens."""
    return sum(int(slot["n_prompt_tokens"]) for slot in server.client.get("/slots").json())


def _hold(server: Server) -> int:
    """Load the model, and stop its worker with SIGSTOP."""
    assert _embed(server, "x").status_code == 200
    (worker,) = server.workers()
    os.kill(worker, signal.SIGSTOP)
    return worker


def _running(server: Server) -> int:
    """The running requests in the gateway."""
    health = server.client.get("/health").json()
    return int(health["slots_total"] - health["slots_available"])


def test_concurrent_requests_get_their_own_vectors(tiny_models: dict[str, Path]) -> None:
    texts = [f"{'the mare and ' * (n % 7)}a horse of {chr(97 + n % 26)}" for n in range(64)]
    with Server("-m", str(tiny_models["embedding"]), "-t", "1", "-fa", "off") as server:
        alone = [_embed(server, text).json()["data"][0]["embedding"] for text in texts]
        with ThreadPoolExecutor(32) as pool:
            together = list(pool.map(lambda text: _embed(server, text).json()["data"][0]["embedding"], texts))
        for one, other in zip(alone, together, strict=True):
            assert max(abs(a - b) for a, b in zip(one, other, strict=True)) < 1e-4


def test_a_disconnect_cancels_the_inputs() -> None:
    with Server("-m", "fake:delay=0.2", "--embedding") as server:
        assert _embed(server, "x").status_code == 200
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}{EMBEDDINGS}", json={"input": ["hay"] * 2048}, timeout=1)
        # The whole request would take fifty seconds.
        wait_for(lambda: _waiting(server) == 0, 10, "the inputs to be dropped")
        wait_for(lambda: _running(server) == 0, 10, "the request to end")


def test_a_full_queue_refuses_requests() -> None:
    env = {"PADDOCK_SERVER__SHUTDOWN_GRACE": "0"}
    with (
        ThreadPoolExecutor(1) as pool,
        Server("-m", "fake:delay=0.2", "--embedding", "--max-queue", "0", env=env) as server,
    ):
        library = pool.submit(_embed, server, ["hay"] * 2048)
        wait_for(lambda: _waiting(server) > 0, 20, "the request to run")
        refused = _embed(server, "hay")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        server.stop()
        assert library.result(200).json()["error"]["code"] == "server_stopping"


@full
def test_a_crash_is_retried_once() -> None:
    """No part of the response was sent, so a new worker can compute it."""
    with Server("-m", "fake:", "--embedding") as server, ThreadPoolExecutor(1) as pool:
        worker = _hold(server)
        asked = pool.submit(_embed, server, "hay")
        wait_for(lambda: _running(server), 10, "the request to arrive")
        os.kill(worker, signal.SIGKILL)
        assert asked.result(200).status_code == 200
        assert "SIGABRT" in _embed(server, ["hay", "crash: now"]).text
        assert _embed(server, "hay").status_code == 200


def test_openai_client(tiny_models: dict[str, Path]) -> None:
    with (
        Server("-m", str(tiny_models["embedding"]), "-t", "1") as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        packed = client.embeddings.create(model="any", input=["the horse", "the mare"])
        plain = client.embeddings.create(model="any", input=["the horse", "the mare"], encoding_format="float")
        for one, other in zip(packed.data, plain.data, strict=True):
            assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
        assert packed.usage.prompt_tokens == plain.usage.total_tokens > 4
        short = client.embeddings.create(model="any", input=[[2, 7, 3]], dimensions=8).data[0].embedding
        assert len(short) == 8 and sum(number**2 for number in short) == pytest.approx(1, abs=1e-4)
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model="any", input="a " * 3000)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")


def _dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def test_similar_sentences_have_similar_vectors(real_models: Path) -> None:
    sentences = ["A horse gallops over the meadow.", "A pony runs across the field.", "The bank raised its rates."]
    with Server("-m", str(real_models / "all-MiniLM-L6-v2.Q3_K_S.gguf")) as server:
        body = _embed(server, sentences).json()
        horse, pony, bank = (item["embedding"] for item in body["data"])
        assert len(horse) == 384
        assert _dot(horse, pony) > 0.4 > 0.3 > _dot(horse, bank)


def test_a_real_model_ranks_the_relevant_document_first(real_models: Path) -> None:
    documents = [
        "The Eiffel Tower is a landmark in Paris.",
        "Horses eat grass and hay.",
        "Interest rates rose by half a percent last year.",
    ]
    with Server("-m", str(real_models / "bert-mini-reranker.F16.gguf")) as server:
        body = {"query": "What do horses eat?", "documents": documents}
        ranked = server.client.post("/v1/rerank", json=body).json()["results"]
        assert ranked[0]["index"] == 1
        assert server.client.get("/v1/models").json()["data"][0]["kind"] == "reranking"
