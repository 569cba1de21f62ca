"""Event streams: keep-alive comments, clients that do not read, timings, and models that still load."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.server import Server, chat_body, events, wait_for
from tests.tiers import full

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TIMINGS = {
    "cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second",
    "predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second",
}  # fmt: skip


def _stream(server: Server, path: str, **body: Any) -> list[dict[str, Any]]:
    with server.client.stream("POST", path, json={"stream": True, **body}) as response:
        assert response.status_code == 200
        return [json.loads(data) for _, data in events(response) if data != "[DONE]"]


def _wait_for_load(server: Server) -> None:
    """A stream that waits for a load starts with comments about the load."""
    assert server.client.post("/tokenize", json={"content": "x"}).status_code == 200  # loads the model


# ── keep-alive ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def slow_server() -> Iterator[Server]:
    with Server("-m", "fake:delay=2") as server:
        _wait_for_load(server)
        yield server


@full
@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, chat_body("say: x")), (COMPLETIONS, {"prompt": "x"}), ("/completion", {"prompt": "x"})]
)
def test_comments_keep_a_silent_stream_alive(slow_server: Server, path: str, body: dict[str, Any]) -> None:
    body = {**body, "max_tokens": 1, "stream": True}
    with slow_server.client.stream("POST", path, json={**body, "sse_ping_interval": 1}) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines[0] == ": keep-alive", "during prefill"
    assert lines[-1].startswith("data: ")
    with slow_server.client.stream("POST", path, json={**body, "sse_ping_interval": -1}) as response:
        assert not any(line.startswith(":") for line in response.iter_lines())


# ── slow clients ─────────────────────────────────────────────────────────────────────────────────────────────────────


@full
def test_a_client_that_does_not_read_ends_its_own_answer() -> None:
    """The server buffers deltas up to a limit. Then it ends the generation with an error."""
    with Server("-m", "fake:", "-np", "64") as server:
        _wait_for_load(server)
        body = {"prompt": "x", "n_predict": 60, "n_cmpl": 64, "n_probs": 200, "stream": True}
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            url = urlsplit(server.url)
            client.connect((url.hostname, url.port))
            client.settimeout(60)
            content = json.dumps(body).encode()
            head = (
                f"POST /completion HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
            )
            client.sendall(head.encode() + content)
            received = bytearray(client.recv(20))
            assert received.startswith(b"HTTP/1.1 200")
            wait_for(lambda: server.client.get("/health").json()["slots_available"] == 64, 90, "the answer to end")
            assert server.chat("say: still running")["choices"][0]["message"]["content"] == "still running"
            while part := client.recv(1 << 20):
                received += part
        assert received.count(b"data: ") > 300, "data that was already buffered is delivered"
        assert b"event: error" in received
        assert b"read_too_slowly" in received
        assert b'"stop":true' not in received, "no answer is complete"
        complete = server.client.post("/completion", json={**body, "n_cmpl": 4}).text
        assert complete.count('"stop":true') == 4


# ── timings ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat_body("say: hello")), (COMPLETIONS, {"prompt": "x"})])
def test_the_last_chunk_has_timings(fake_server: Server, path: str, body: dict[str, Any]) -> None:
    *chunks, last = _stream(fake_server, path, max_tokens=3, **body)
    assert not any("timings" in chunk for chunk in chunks)
    assert set(last["timings"]) >= TIMINGS
    assert last["timings"]["predicted_n"] == 3
    assert last["choices"][0]["finish_reason"] == "length"
    *chunks, last = _stream(fake_server, path, max_tokens=3, logprobs=True if path == CHAT else 1, **body)
    assert not any("timings" in chunk for chunk in chunks)
    *chunks, last = _stream(fake_server, path, max_tokens=3, stream_options={"include_usage": True}, **body)
    assert not any("timings" in chunk for chunk in chunks)
    assert last["timings"]["predicted_n"] == last["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat_body("say: hello")), (COMPLETIONS, {"prompt": "x"})])
def test_timings_with_every_token(fake_server: Server, path: str, body: dict[str, Any]) -> None:
    chunks = _stream(fake_server, path, max_tokens=3, timings_per_token=True, **body)
    counts = [chunk["timings"]["predicted_n"] for chunk in chunks if "timings" in chunk]
    assert counts in ([1, 2, 3, 3], [1, 2, 3])


def test_timings_of_several_answers(fake_server: Server) -> None:
    body = fake_server.chat("say: hello", n=3)
    usage, timings = body["usage"], body["timings"]
    assert timings["predicted_n"] == usage["completion_tokens"] == 18
    last = _stream(fake_server, CHAT, n=3, **chat_body("say: hello"))[-1]
    assert last["timings"]["predicted_n"] == 18
    many = fake_server.client.post(COMPLETIONS, json={"prompt": ["a", "b"], "n": 2, "max_tokens": 4}).json()
    assert many["timings"]["predicted_n"] == 16


@full
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat_body("the " * 200)),
        (COMPLETIONS, {"prompt": "the " * 200}),
        ("/completion", {"prompt": "the " * 200}),
    ],
)
def test_progress_of_a_long_prompt(tiny_models: dict[str, Path], path: str, body: dict[str, Any]) -> None:
    with Server("-m", str(tiny_models["llama"]), "-b", "64", "-ub", "64", "-c", "1024") as server:
        chunks = _stream(server, path, return_progress=True, max_tokens=2, **body)
        progress = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
        assert len(progress) > 3
        assert all(set(step) == {"total", "cache", "processed", "time_ms"} for step in progress)
        processed = [step["processed"] for step in progress]
        assert processed == sorted(set(processed))
        assert processed[-1] == progress[-1]["total"] > 200
        assert [chunk for chunk in chunks if "prompt_progress" in chunk] == chunks[: len(progress)] or path == CHAT
        again = _stream(server, path, return_progress=True, max_tokens=2, **body)
        begun, known = [chunk["prompt_progress"] for chunk in again if "prompt_progress" in chunk]
        assert known["cache"] == known["total"] - 1 == begun["processed"]
        assert server.client.post(path, json={**body, "return_progress": True, "max_tokens": 2}).status_code == 200


def test_progress_with_echoed_logprobs(fake_server: Server) -> None:
    chunks = _stream(
        fake_server, COMPLETIONS, prompt="to be echoed", echo=True, logprobs=1, max_tokens=2, return_progress=True
    )
    assert "prompt_progress" in chunks[0]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks).startswith("to be echoed")


# ── indentation ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_answer_ends_at_a_smaller_indentation(fake_server: Server) -> None:
    text = "def f():\n    if x:\n        pass\n  return\n    more"
    choice = fake_server.chat(f"say: {text}", n_indent=4)["choices"][0]
    assert choice["message"]["content"] == "def f():\n    if x:\n        pass\n  "
    assert choice["finish_reason"] == "length"
    free = fake_server.chat(f"say: {text}", n_indent=0)["choices"][0]
    assert (free["message"]["content"], free["finish_reason"]) == (text, "stop")
    stopped = fake_server.chat(f"say: {text}", n_indent=4, stop=["if"])["choices"][0]
    assert (stopped["message"]["content"], stopped["finish_reason"]) == ("def f():\n    ", "stop")
    cut = fake_server.chat("say: a\nb", n_indent=4, regex="a\nb")["choices"][0]
    assert (cut["message"]["content"], cut["finish_reason"]) == ("a\n", "length"), "the regex is not complete"
    shown = "".join(
        chunk["choices"][0]["delta"].get("content", "")
        for chunk in _stream(fake_server, CHAT, n_indent=4, **chat_body(f"say: {text}"))
    )
    assert shown == choice["message"]["content"]


# ── while the model loads ────────────────────────────────────────────────────────────────────────────────────────────

SLOW_TO_LOAD = [
    ("/v1/chat/completions", chat_body("say: hello")),
    ("/v1/completions", {"prompt": ["x", "y"], "max_tokens": 2}),
    ("/v1/responses", {"input": "say: hello"}),
    ("/v1/messages", chat_body("say: hello", max_tokens=9)),
    ("/completion", {"prompt": "x", "n_predict": 2}),
]


@full
def test_streams_begin_while_the_model_loads() -> None:
    with Server("-m", "fake:load=6") as server, ThreadPoolExecutor(len(SLOW_TO_LOAD)) as pool:

        def answer(request: tuple[str, dict[str, Any]]) -> str:
            path, body = request
            return httpx.post(f"{server.url}{path}", json=body | {"stream": True}, timeout=60).text

        for text in pool.map(answer, SLOW_TO_LOAD):
            assert text.startswith(": loading fake")
            assert "data: " in text
            assert "event: error" not in text


def test_a_failure_after_the_start_of_a_stream_is_an_event() -> None:
    with Server("-m", "fake:load=30") as server:
        with server.client.stream("POST", "/v1/messages", json=chat_body("x", max_tokens=9, stream=True)) as response:
            assert response.status_code == 200
            wait_for(server.workers, 10, "the worker")
            (worker,) = server.workers()
            os.kill(worker, signal.SIGKILL)
            ((name, data),) = events(response)
        assert name == "error"
        assert json.loads(data)["type"] == "error"
        assert "SIGKILL" in json.loads(data)["error"]["message"]


def test_an_early_refusal_has_a_status() -> None:
    with Server("-m", "fake:") as server:
        _wait_for_load(server)
        response = server.client.post("/v1/chat/completions", json=chat_body("word " * 9000, stream=True))
        assert response.status_code == 400
