"""The same requests to three replica sets of two: llama-servers, local workers, Paddock servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
import jsonschema
import pytest

from paddock.gateway.ops.metrics.families import FAMILIES
from tests.replicas.llama_server import LlamaServer, llama_server_binary
from tests.server import Server, chat_body, events, wait_for
from tests.tiers import full

Kind = Literal["llama-server", "workers", "paddocks"]
_OPTIONS = ("-c", "2048", "-np", "2")


@dataclass
class Pool:
    kind: Kind
    server: Server

    @property
    def client(self) -> httpx.Client:
        return self.server.client

    def replicas(self) -> list[dict[str, Any]]:
        (model,) = self.client.get("/admin/status").json()["models"]
        replicas: list[dict[str, Any]] = model["replicas"]
        return replicas


def settings(folder: Path, model: dict[str, Any]) -> tuple[str, ...]:
    file = folder / "paddock.json"
    file.write_text(json.dumps({"model_manager": {"models": {"pooled": model}, "default_model": "pooled"}}))
    return ("--config", str(file))


@pytest.fixture(scope="module", params=["llama-server", "workers", "paddocks"])
def pool(request: pytest.FixtureRequest, demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    kind: Kind = request.param
    with ExitStack() as stack:
        replicas: dict[str, dict[str, Any]]
        if kind == "workers":
            replicas = {"a": {"n_threads": 1}, "b": {"n_threads": 1}}
        elif kind == "llama-server":
            binary = llama_server_binary()
            upstream = [stack.enter_context(LlamaServer(binary, demo_model, *_OPTIONS)) for _ in range(2)]
            replicas = {name: {"url": one.url} for name, one in zip("ab", upstream, strict=True)}
        else:
            paddocks = [stack.enter_context(Server("-m", str(demo_model), "-t", "1", *_OPTIONS)) for _ in range(2)]
            replicas = {name: {"url": one.url} for name, one in zip("ab", paddocks, strict=True)}
        model = {"replicas": replicas, "preload": True, "n_ctx": 2048, "parallel": 2}
        if kind == "workers":
            model["path"] = str(demo_model)
        server = stack.enter_context(Server(*settings(tmp_path_factory.mktemp("pool"), model)))
        pool = Pool(kind, server)
        wait_for(lambda: all(one["health"] == "ready" and one["slots"] for one in pool.replicas()), 60, "the replicas")
        if kind == "workers":
            wait_for(lambda: all(one["fingerprint"] for one in pool.replicas()), 60, "both workers")
        yield pool


def test_chat(pool: Pool) -> None:
    answer = pool.server.chat("Name a colour.", temperature=0, max_tokens=8)
    assert answer["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")
    assert answer["model"] == "pooled"
    assert answer["usage"]["prompt_tokens"] > 5
    assert 1 <= answer["usage"]["completion_tokens"] <= 8
    assert answer["timings"]["predicted_n"] == answer["usage"]["completion_tokens"]


def test_streamed_chat(pool: Pool) -> None:
    body = chat_body(
        "Count to five.", temperature=0, max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    with pool.client.stream("POST", "/v1/chat/completions", json=body) as response:
        received = [data for _, data in events(response)]
    assert received[-1] == "[DONE]"
    chunks = [json.loads(data) for data in received[:-1]]
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert text
    assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]][-1] == "length"
    assert chunks[-1]["usage"]["completion_tokens"] == 12
    assert len(chunks) > 6


@pytest.mark.parametrize("stream", [False, True])
def test_llama_completion(pool: Pool, stream: bool) -> None:
    body = {"prompt": "Once upon a time", "n_predict": 6, "temperature": 0, "n_probs": 2, "stream": stream}
    if not stream:
        answer = pool.client.post("/completion", json=body).json()
        assert answer["content"] and answer["stop_type"] == "limit"
        assert "Once upon a time" in answer["prompt"]
        assert len(answer["completion_probabilities"]) == 6
        assert len(answer["completion_probabilities"][0]["top_logprobs"]) == 2
    else:
        with pool.client.stream("POST", "/completion", json=body) as response:
            parts = [json.loads(data) for _, data in events(response)]
        assert "".join(part["content"] for part in parts[:-1])
        assert all(part["tokens"] for part in parts[:-1])
        answer = parts[-1]
    assert answer["stop"] is True
    assert answer["tokens_predicted"] == 6
    assert answer["tokens_evaluated"] >= 4


def test_logprobs_and_stop_strings(pool: Pool) -> None:
    body = {"prompt": ["One, two, three,", [1, 2, 3]], "max_tokens": 5, "temperature": 0, "logprobs": 2}
    answer = pool.client.post("/v1/completions", json=body).json()
    assert len(answer["choices"]) == 2
    logprobs = answer["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == 5 and all(value <= 0 for value in logprobs["token_logprobs"])
    assert answer["usage"]["completion_tokens"] == 10
    body = {"prompt": "One, two, three,", "max_tokens": 16, "temperature": 0, "stop": ["five"]}
    choice = pool.client.post("/v1/completions", json=body).json()["choices"][0]
    assert "five" not in choice["text"] and choice["finish_reason"] == "stop"


def test_two_completions_of_one_prompt(pool: Pool) -> None:
    answer = pool.server.chat("Say anything.", n=2, max_tokens=4, seed=7)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert all(choice["message"]["content"] for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] <= 8


def test_the_other_dialects(pool: Pool) -> None:
    message = pool.client.post("/v1/messages", json=chat_body("Hello!", max_tokens=5, temperature=0)).json()
    assert message["content"][0]["text"] and message["stop_reason"] in ("max_tokens", "end_turn")
    assert message["usage"]["input_tokens"] > 5
    response = pool.client.post("/v1/responses", json={"input": "Hello!", "max_output_tokens": 5}).json()
    assert response["output"][0]["content"][0]["text"]


def test_json_schema(pool: Pool) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"type": "string", "maxLength": 10}, "number": {"type": "integer", "maximum": 9}},
        "required": ["colour", "number"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}
    answer = pool.server.chat("A colour and a number.", response_format=form, temperature=0, max_tokens=64)
    jsonschema.validate(json.loads(answer["choices"][0]["message"]["content"]), schema)


def test_tokenize_and_render(pool: Pool) -> None:
    tokens = pool.client.post("/tokenize", json={"content": "Hello world"}).json()["tokens"]
    assert pool.client.post("/detokenize", json={"tokens": tokens}).json()["content"] == "Hello world"
    pieces = pool.client.post("/tokenize", json={"content": "Hello world", "with_pieces": True}).json()["tokens"]
    assert "".join(piece["piece"] for piece in pieces) == "Hello world"
    prompt = pool.client.post("/apply-template", json=chat_body("Hello!")).json()["prompt"]
    assert "Hello!" in prompt and prompt.rstrip().endswith("assistant")


def test_context_length_exceeded(pool: Pool) -> None:
    response = pool.client.post("/v1/chat/completions", json=chat_body("word " * 4000, max_tokens=4))
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_invalid_requests_reach_no_replica(pool: Pool) -> None:
    response = pool.client.post("/v1/chat/completions", json=chat_body("x", temperature="hot"))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "temperature"


def test_a_disconnect_frees_the_slot(pool: Pool) -> None:
    body = chat_body("Write a long story.", max_tokens=1500, stream=True, ignore_eos=True)
    with pool.client.stream("POST", "/v1/chat/completions", json=body) as response:
        reading = events(response)
        next(reading)
        wait_for(lambda: any(_processing(pool)), 30, "a busy slot")
    wait_for(lambda: not any(_processing(pool)), 30, "all slots to be idle")


@full
def test_both_replicas_are_used_under_load(pool: Pool) -> None:
    before = _sent(pool)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda n: pool.server.chat(f"Question {n}?", max_tokens=16), range(8)))
    assert all(answer["choices"][0]["message"]["content"] is not None for answer in answers)
    after = _sent(pool)
    assert sum(after.values()) - sum(before.values()) == 8
    assert all(after[name] > before[name] for name in "ab")


def test_metric_labels(pool: Pool) -> None:
    for _ in range(2):
        pool.server.chat("Hello!", max_tokens=4)
    for name in "ab":
        labels = {"model_id": "pooled", "pool": "pooled", "replica": name}
        if any(
            _value(pool, "paddock_replica_requests_total", labels | {"reason": why})
            for why in ("prefix", "load", "new")
        ):
            wait_for(lambda: _value(pool, "llamacpp:tokens_predicted_total", labels), 30, "its token counts")  # noqa: B023
        assert _value(pool, "paddock_replica_health", labels | {"health": "ready"}) == 1
    for replica in pool.replicas():
        assert replica["engine"] == ("paddock" if pool.kind == "paddocks" else "llama.cpp")
        assert replica["engine_version"] not in ("", "unknown")


def test_all_replica_metrics(pool: Pool) -> None:
    page = pool.client.get("/metrics").text
    declared = {name for name in FAMILIES if name.startswith("paddock_replica_")}
    only_elsewhere = {"paddock_replica_tokens_total", "paddock_replica_answers_total"}
    shown = {name for name in declared if f"{name}{{" in page}
    assert shown == (declared - only_elsewhere if pool.kind == "workers" else declared)


@full
def test_drain_loses_no_request(pool: Pool) -> None:
    body = chat_body("Tell me of the sea.", max_tokens=40, ignore_eos=True, stream=True)
    with ExitStack() as stack:
        streams = [stack.enter_context(pool.client.stream("POST", "/v1/chat/completions", json=body)) for _ in range(3)]
        reading = [events(stream) for stream in streams]
        for one in reading:
            next(one)
        drained = pool.client.post("/admin/drain", json={"model": "pooled", "replica": "a", "wait": False}).json()
        assert drained["drained"] is True
        before = _sent(pool)["a"]
        assert pool.server.chat("Who answers now?", max_tokens=2)["choices"]
        assert _sent(pool)["a"] == before
        assert all([data for _, data in one][-1] == "[DONE]" for one in reading)

    def drain() -> dict[str, Any]:
        answer: dict[str, Any] = pool.client.post("/admin/drain", json={"model": "pooled", "replica": "a"}).json()
        return answer

    # The load of a remote server is known from its last scrape, which may be older than the end of the streams.
    wait_for(lambda: drain()["running"] == 0, 60, "the drained replica to be idle")
    assert drain() == {"status": "ok", "model": "pooled", "replica": "a", "drained": True, "running": 0}
    assert pool.client.get("/health").status_code == 200
    assert pool.client.post("/admin/undrain", json={"model": "pooled", "replica": "a"}).json()["drained"] is False
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda n: pool.server.chat(f"And {n}?", max_tokens=16), range(6)))
    if pool.kind != "workers":  # it may have to be loaded first
        assert _sent(pool)["a"] > before


def test_unknown_replica(pool: Pool) -> None:
    response = pool.client.post("/admin/drain", json={"model": "pooled", "replica": "c"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "replica"


def _processing(pool: Pool) -> list[bool]:
    return [slot["is_processing"] for slot in pool.client.get("/slots").json()]


def _sent(pool: Pool) -> dict[str, float]:
    labels = {"model_id": "pooled", "pool": "pooled"}
    return {
        name: sum(
            _value(pool, "paddock_replica_requests_total", labels | {"replica": name, "reason": reason})
            for reason in ("prefix", "load", "new")
        )
        for name in "ab"
    }


def _value(pool: Pool, name: str, labels: dict[str, str]) -> float:
    total = 0.0
    for line in pool.client.get("/metrics").text.splitlines():
        if line.startswith(f"{name}{{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
            total += float(line.rsplit(" ", 1)[1])
    return total
