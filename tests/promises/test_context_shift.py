"""Answers beyond the context of a real model: others are unaffected, no cell is lost, and llama-server agrees."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.replicas.llama_server import LlamaServer, llama_server_binary
from tests.server import Server, wait_for
from tests.tiers import full

_SHARED = " ".join(f"the {n} of mare and in an{n}" for n in range(8))


def _complete(url: str, prompt: str, **options: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "temperature": 0, "ignore_eos": True, "return_tokens": True, **options}
    response = httpx.post(f"{url}/completion", json=body, timeout=200)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.fixture(scope="module", params=[["-np", "3"], ["-np", "3", "-kvu"]])
def server(request: pytest.FixtureRequest, tiny_models: dict[str, Path]) -> Iterator[Server]:
    arguments = ("-m", str(tiny_models["llama"]), "-c", "768", "--context-shift", "--keep", "20")
    # With f32 caches the batch shape does not change the text.
    exact = ("-t", "1", "-fa", "off", "-ctk", "f32", "-ctv", "f32")
    with Server(*arguments, *exact, *request.param, env={"PADDOCK_CHECK_CACHE": "1"}) as server:
        yield server


def test_others_get_the_answer_that_they_get_alone(server: Server) -> None:
    others = [f"{_SHARED} and {end}" for end in ("mare", "foal")]
    alone = [_complete(server.url, prompt, n_predict=60)["tokens"] for prompt in others]
    with ThreadPoolExecutor() as pool:
        shifting = pool.submit(_complete, server.url, _SHARED, n_predict=1000)
        together = [pool.submit(_complete, server.url, prompt, n_predict=60) for prompt in others]
        assert [answer.result()["tokens"] for answer in together] == alone
        long = shifting.result()
    assert (long["tokens_predicted"], long["truncated"], long["stop_type"]) == (1000, True, "limit")
    n_ctx = server.client.get("/props").json()["context"]["per_request"]
    assert long["tokens_cached"] < n_ctx


@full
def test_no_cell_is_held_afterwards(server: Server) -> None:
    _complete(server.url, _SHARED, n_predict=900)

    def held() -> float:
        found = re.search(r"^llamacpp:kv_cache_tokens\S* (\S+)", server.client.get("/metrics").text, re.MULTILINE)
        assert found is not None
        return float(found[1])

    wait_for(lambda: held() == 0, 30, "the cells to be free")


def test_llama_server_keeps_and_drops_the_same(tiny_models: dict[str, Path]) -> None:
    arguments = ["-c", "256", "-np", "1", "--context-shift", "--keep", "16", "-t", "1"]
    shown = ("tokens_predicted", "tokens_evaluated", "tokens_cached", "truncated", "stop_type")
    asked: list[dict[str, int]] = [{"n_predict": 300}, {"n_predict": 400, "n_keep": -1, "n_discard": 9}]
    theirs = LlamaServer(llama_server_binary(), tiny_models["llama"], *arguments)
    with theirs, Server("-m", str(tiny_models["llama"]), *arguments) as ours:
        for body in asked:
            other, own = (_complete(url, _SHARED, cache_prompt=False, **body) for url in (theirs.url, ours.url))
            assert [own[name] for name in shown] == [other[name] for name in shown]
            until = 256 - own["tokens_evaluated"]
            assert own["tokens"][:until] == other["tokens"][:until]
