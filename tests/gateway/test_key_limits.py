"""The rate limits of API keys over HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
from typing import Any

import httpx
import openai
import pytest

from tests.gateway.key_config import ADMIN, CHAT, KeyConfig, chat, headers_of, refusal_of, usage_of
from tests.server import chat_body, events, wait_for


def test_requests_per_minute(config: KeyConfig) -> None:
    config.keys["anna"]["requests_per_minute"] = 2
    with config.server() as server:
        left = [chat(server, "anna", "small").headers["x-ratelimit-remaining-requests"] for _ in range(2)]
        assert left == ["1", "0"]
        response = chat(server, "anna", "small")
        assert "2 requests per minute" in refusal_of(response, 429, "rate_limit_exceeded")
        assert response.headers["x-ratelimit-limit-requests"] == "2"
        assert 1 <= int(response.headers["retry-after"]) <= 30
        assert "x-ratelimit-limit-tokens" not in response.headers
        assert server.client.get("/v1/models", headers=headers_of("anna")).status_code == 200, (
            "requests without a model are not limited"
        )
        assert chat(server, "ben", "slow", max_tokens=1).status_code == 200, "the limit holds for one key only"
        usage = usage_of(server, "anna")
        assert (usage["requests"], usage["errors"], usage["rate_limited"]) == (3, 1, 1)


def test_tokens_per_minute(config: KeyConfig) -> None:
    config.keys["anna"]["tokens_per_minute"] = 3
    with config.server() as server:
        # Load the model first: a stream that waits for a load starts before its prompt has been counted.
        boss = {"authorization": "Bearer boss"}
        assert server.client.post(CHAT, json=chat_body("say: hi", model="small"), headers=boss).status_code == 200
        with server.client.stream(
            "POST", CHAT, json=chat_body("say: hello", model="small", stream=True), headers=headers_of("anna")
        ) as response:
            assert response.headers["x-ratelimit-limit-tokens"] == "3"
            assert response.headers["x-ratelimit-remaining-tokens"] == "0", "the prompt has been charged"
            response.read()
        wait_for(lambda: usage_of(server, "anna")["completion_tokens"], 10, "the tokens of the answer to be counted")
        response = chat(server, "anna", "small")
        assert "3 tokens per minute" in refusal_of(response, 429, "rate_limit_exceeded")
        used = usage_of(server, "anna")["prompt_tokens"] + usage_of(server, "anna")["completion_tokens"]
        wait = (used - 3 + 1) * 20
        assert wait - 60 < int(response.headers["retry-after"]) <= wait, "the wait covers the debt"
        body = {"model": "vectors", "input": "hello"}
        refusal_of(
            server.client.post("/v1/embeddings", json=body, headers=headers_of("anna")), 429, "rate_limit_exceeded"
        )


def test_the_tokens_of_several_answers_are_reserved_first(config: KeyConfig) -> None:
    config.keys["anna"] |= {"tokens_per_minute": 100, "concurrent_requests": 8}
    requests: list[tuple[str, dict[str, Any]]] = [
        (CHAT, chat_body("say: hello", n=8, max_tokens=50)),
        ("/v1/completions", {"prompt": ["say: hello"] * 4, "n": 2, "max_tokens": 50}),
        ("/v1/completions", {"prompt": "say: hello", "n": 1, "best_of": 8, "max_tokens": 50}),
        ("/completion", {"prompt": "say: hello", "n_cmpl": 8, "n_predict": 50}),
        (CHAT, chat_body("say: hello", n=2)),
    ]
    with config.server() as server:
        for path, body in requests:
            response = server.client.post(path, json={**body, "model": "small"}, headers=headers_of("anna"))
            assert "this key may use 100 per minute" in refusal_of(response, 400, "invalid_request")
        used = usage_of(server, "anna")
        assert (used["prompt_tokens"], used["completion_tokens"]) == (0, 0)
        many = {"model": "small", "prompt": ["x"] * 9, "n": 128, "max_tokens": 1}
        response = server.client.post("/v1/completions", json=many, headers=ADMIN)
        assert "1152 answers; the limit is 1024" in refusal_of(response, 400, "invalid_request")
        assert chat(server, "anna", "small", "say: hi", max_tokens=5).status_code == 200, (
            "refused requests reserve nothing"
        )


def test_each_answer_counts_as_a_concurrent_request(config: KeyConfig) -> None:
    config.keys["anna"]["concurrent_requests"] = 2
    with config.server() as server:
        assert "this key may have 2" in refusal_of(chat(server, "anna", "small", n=3), 400, "invalid_request")
        assert chat(server, "anna", "small", n=2).status_code == 200
        assert chat(server, "anna", "small", n=2).status_code == 200


def test_embeddings_are_charged_when_the_client_disconnects(config: KeyConfig) -> None:
    config.models["vectors"]["path"] = "fake:delay=0.02"
    text, count = "hello, world " * 20, 2000
    total = len(text) * count
    body = json.dumps({"model": "vectors", "input": [text] * count}).encode()

    def is_running() -> bool:
        slots = server.client.get("/slots", params={"model": "vectors"}, headers=ADMIN).json()
        return bool(slots) and 0 < slots[0]["n_prompt_tokens"] < total

    with config.server() as server:
        address = httpx.URL(server.url)
        with socket.create_connection((address.host, address.port or 80)) as client:
            head = "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer anna-key\r\n"
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            wait_for(is_running, 20, "some inputs to be computed")
        wait_for(lambda: usage_of(server, "anna")["prompt_tokens"], 20, "the request to end")
        assert 0 < usage_of(server, "anna")["prompt_tokens"] < total


def test_embeddings_are_charged(config: KeyConfig) -> None:
    config.keys["anna"]["tokens_per_minute"] = 3
    with config.server() as server:
        body = {"model": "vectors", "input": "hello, world"}
        response = server.client.post("/v1/embeddings", json=body, headers=headers_of("anna"))
        assert response.headers["x-ratelimit-remaining-tokens"] == "0"
        assert usage_of(server, "anna")["prompt_tokens"] == response.json()["usage"]["prompt_tokens"] > 3
        refusal_of(chat(server, "anna", "small"), 429, "rate_limit_exceeded")


def test_a_concurrent_request_is_released_however_it_ends(config: KeyConfig) -> None:
    config.keys["ben"]["concurrent_requests"] = 1
    long = chat_body("say: " + "x" * 3000, model="slow", stream=True)
    with config.server() as server:

        def is_free() -> bool:
            return chat(server, "ben", "slow", "say: x", max_tokens=1).status_code == 200

        with server.client.stream("POST", CHAT, json=long, headers=headers_of("ben")) as response:
            stream = events(response)
            next(stream)
            refusal = chat(server, "ben", "slow")
            assert "1 concurrent requests" in refusal_of(refusal, 429, "rate_limit_exceeded")
            assert refusal.headers["retry-after"] == "1"
        wait_for(is_free, 20, "the end of a stream whose client disconnected")

        with server.client.stream("POST", CHAT, json=long, headers=headers_of("ben")) as response:
            stream = events(response)
            next(stream)
            for pid in server.workers():
                os.kill(pid, signal.SIGKILL)
            assert "worker_crashed" in list(stream)[-1][1]
        wait_for(is_free, 20, "the end of a stream whose worker crashed")

        with pytest.raises(httpx.ReadTimeout):
            body = {**long, "stream": False}
            httpx.post(f"{server.url}{CHAT}", json=body, headers=headers_of("ben"), timeout=1)
        wait_for(is_free, 20, "the end of a request whose client timed out")

        refusal_of(server.client.post(CHAT, content=b"{", headers=headers_of("ben")), 400, "invalid_json")
        assert is_free(), "a refused request is released at once"


def test_the_openai_package_reports_the_rate_limit(config: KeyConfig) -> None:
    config.keys["anna"]["requests_per_minute"] = 1
    with config.server() as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="anna-key", max_retries=0) as client:
            client.completions.create(model="small", prompt="x", max_tokens=1)
            with pytest.raises(openai.RateLimitError, match="1 requests per minute"):
                client.completions.create(model="small", prompt="x", max_tokens=1)
