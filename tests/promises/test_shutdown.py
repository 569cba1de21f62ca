"""Disconnects and shutdown: cancelled work stops, and running requests finish or get an error."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Semaphore
from typing import Any

import httpx
import pytest

from tests.server import Server, alive, chat_body, client_of, events, wait_for
from tests.sockets import Wire, post
from tests.tiers import full

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def slow_server() -> Iterator[Server]:
    with Server("-m", "fake:delay=0.5", "-np", "3") as server:
        yield server


@pytest.mark.parametrize("url", ["/v1/completions", "/completion"])
def test_a_disconnect_cancels_all_prompts_of_a_request(slow_server: Server, url: str) -> None:
    client = slow_server.client
    body = {"prompt": ["x" * 130, "y" * 130], "max_tokens": 60, "stream": True}
    with client.stream("POST", url, json=body) as response:
        stream = events(response)
        next(stream)
        with client_of(slow_server.url) as other:
            assert other.get("/health").json()["slots_available"] == 1
    wait_for(lambda: client.get("/health").json()["slots_available"] == 3, 20, "free slots")
    wait_for(lambda: _running(slow_server) == 0, 20, "the worker to cancel them")


@pytest.mark.parametrize(
    ("url", "body"),
    [
        (CHAT, chat_body("x")),
        ("/v1/completions", {"prompt": ["x" * 130, "y" * 130], "max_tokens": 100}),
        ("/completion", {"prompt": "x" * 130, "n_predict": 100}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", chat_body("x", max_tokens=100)),
    ],
)
def test_a_disconnect_without_a_stream_frees_the_slot(slow_server: Server, url: str, body: dict[str, Any]) -> None:
    with Wire(slow_server.url) as leaving:
        leaving.send(post(url, body))
        wait_for(lambda: _running(slow_server) > 0, 20, "the request to run")
    # The whole answer would take 50 s.
    wait_for(lambda: _running(slow_server) == 0, 5, "free slots")
    assert "status=499" in slow_server.wait_for_line("request ", f"path={url} ", "error=client_left")


def test_a_disconnect_within_the_body_is_logged_as_one(slow_server: Server) -> None:
    with Wire(slow_server.url) as leaving:
        leaving.send(post("/tokenize", {"content": "x" * 1000})[:-500])
    slow_server.wait_for_line("request ", "path=/tokenize ", "status=499", "error=client_left")


def _running(server: Server) -> int:
    return sum(bool(slot["is_processing"]) for slot in server.client.get("/slots").json())


@full
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_lets_a_stream_finish(sign: signal.Signals) -> None:
    with Server("-m", "fake:delay=0.01", env={"PADDOCK_SERVER__SHUTDOWN_GRACE": "120"}) as server:
        with server.client.stream("POST", CHAT, json=chat_body("hello", stream=True)) as response:
            stream = events(response)
            next(stream)
            workers = server.workers()
            server.process.send_signal(sign)
            rest = list(stream)
        assert rest[-1] == ("message", "[DONE]"), "it finishes within the grace period"
        assert server.process.wait(100) == 0
        assert not any(map(alive, workers))


def test_a_stream_longer_than_the_grace_period_ends_with_an_error(tmp_path_factory: pytest.TempPathFactory) -> None:
    env = {"PADDOCK_SERVER__SHUTDOWN_GRACE": "0.3"}
    with Server("-m", "fake:delay=0.2", env=env) as server:
        with server.client.stream("POST", CHAT, json=chat_body("hello", stream=True)) as response:
            stream = events(response)
            next(stream)
            workers = server.workers()
            server.process.send_signal(signal.SIGTERM)
            rest = list(stream)
        event, data = rest[-1]
        assert event == "error"
        assert json.loads(data)["error"]["code"] == "server_stopping"
        server.process.wait(100)
        assert not any(map(alive, workers))


def test_a_second_sigint_stops_at_once() -> None:
    env = {"PADDOCK_SERVER__SHUTDOWN_GRACE": "600"}
    with Server("-m", "fake:delay=0.2", env=env) as server:
        with server.client.stream("POST", CHAT, json=chat_body("hello", stream=True)) as response:
            stream = events(response)
            next(stream)
            workers = server.workers()
            server.process.send_signal(signal.SIGINT)
            wait_for(lambda: _health(server) == (503, "server_stopping"), 10, "the first signal to be handled")
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(100) == 0
        assert not any(map(alive, workers))
    assert not [line for line in server.output if "Traceback" in line or "CancelledError" in line]


def test_shutdown_finishes_running_requests_and_refuses_new_ones() -> None:
    env = {"PADDOCK_SERVER__SHUTDOWN_GRACE": "120"}
    with Server("-m", "fake:delay=0.05,load=1", "-np", "8", env=env) as server, ThreadPoolExecutor(8) as pool:
        started = Semaphore(0)

        def stream(number: int) -> list[tuple[str, str]]:
            body = chat_body(f"say: {number} " + "hay " * 40, stream=True)
            with httpx.stream("POST", f"{server.url}{CHAT}", json=body, timeout=200) as response:
                stream_events = events(response)
                first = next(stream_events)
                started.release()
                return [first, *stream_events]

        streams = [pool.submit(stream, number) for number in range(8)]
        for _ in streams:
            assert started.acquire(timeout=200)
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: _health(server) == (503, "server_stopping"), 10, "the signal to be handled")
        refused = server.client.post(CHAT, json=chat_body("say: late"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_stopping")
        assert [stream_events.result(200)[-1] for stream_events in streams] == [("message", "[DONE]")] * 8
        assert server.process.wait(100) == 0


def test_shutdown_waits_for_a_load() -> None:
    env = {"PADDOCK_SERVER__SHUTDOWN_GRACE": "120"}
    with Server("-m", "fake:load=2", env=env) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.chat, "say: hello")
        wait_for(server.workers, 20, "the load to start")
        server.process.send_signal(signal.SIGTERM)
        assert asked.result(100)["choices"][0]["message"]["content"] == "hello"
        assert server.process.wait(100) == 0


def _health(server: Server) -> tuple[int, str]:
    response = httpx.get(f"{server.url}/health", timeout=200)
    return response.status_code, response.json().get("error", {}).get("code", "")


def test_a_disconnect_frees_the_slot() -> None:
    with Server("-m", "fake:delay=0.2", "-np", "1") as server, ThreadPoolExecutor(1) as pool:
        with server.client.stream("POST", CHAT, json=chat_body("a long answer", stream=True)) as response:
            next(events(response))
            waiting = pool.submit(server.chat, "say: next")  # queued behind the stream
        # The whole answer would take forty seconds; it is cancelled before the next step.
        assert waiting.result(35)["choices"][0]["message"]["content"] == "next"
        wait_for(lambda: server.client.get("/health").json()["slots_available"] == 1, 10, "the slot to be idle")


def test_reading_loads_nothing() -> None:
    with Server() as server:
        for path in ("/health", "/v1/models", "/v1/health", "/openapi.json", "/nothing"):
            server.client.get(path)
        assert server.workers() == []
        assert server.client.get("/health").json()["loaded_models"] == []
