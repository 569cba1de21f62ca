"""Promise 1: a native crash never takes the server down. These tests kill real processes."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.server import Server, alive, chat_body, events, wait_for
from tests.tiers import full

CHAT = "/v1/chat/completions"


@full
def test_a_worker_killed_mid_stream_with_the_real_model() -> None:
    with Server() as server:
        before = server.chat("What is the capital of France?", temperature=0, max_tokens=16)["choices"]
        body = chat_body("Tell me a long story.", stream=True, max_tokens=2000, seed=1)
        with server.client.stream("POST", CHAT, json=body) as response:
            stream = events(response)
            for _ in range(5):
                event, _data = next(stream)
                assert event == "message"
            (pid,) = server.workers()
            os.kill(pid, signal.SIGKILL)
            rest = list(stream)
        event, data = rest[-1]
        assert event == "error"
        error = json.loads(data)["error"]
        assert error["code"] == "worker_crashed"
        assert "SIGKILL" in error["message"]
        assert all(data != "[DONE]" for _, data in rest)
        assert server.client.get("/health").json()["status"] == "ok"
        assert server.chat("What is the capital of France?", temperature=0, max_tokens=16)["choices"] == before
        assert server.workers() != [pid]


@pytest.mark.parametrize("stream", [True, False])
def test_a_worker_that_aborts(fake_server: Server, stream: bool) -> None:
    with httpx.Client(base_url=fake_server.url, timeout=200) as client:
        response = client.post(CHAT, json=chat_body("crash: now", stream=stream))
    if stream:
        assert "event: error" in response.text
        assert "[DONE]" not in response.text
    else:
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
    assert "SIGABRT" in response.text
    assert fake_server.chat("say: back")["choices"][0]["message"]["content"] == "back"


def test_a_worker_exits_when_its_gateway_is_killed() -> None:
    with Server("-m", "fake:delay=0.02") as server:
        with server.client.stream("POST", CHAT, json=chat_body("hello", stream=True)) as response:
            next(events(response))
            workers = server.workers()
            assert len(workers) == 1
            server.process.kill()
            server.process.wait(100)
            wait_for(lambda: not any(map(alive, workers)), 10, "the orphaned worker to exit")


def test_a_worker_exits_when_its_gateway_is_killed_while_loading() -> None:
    with Server("-m", "fake:load=60") as server:
        with pytest.raises(httpx.ReadTimeout):
            server.client.post(CHAT, json=chat_body("hello"), timeout=1)
        wait_for(server.workers, 10, "the worker to start")
        workers = server.workers()
        server.process.kill()
        server.process.wait(100)
        wait_for(lambda: not any(map(alive, workers)), 10, "the orphaned worker to exit")


def test_a_crash_during_the_first_load_ends_the_server() -> None:
    """The only model cannot be loaded. The server exits; it does not retry in a loop."""
    with Server("-m", "fake:load=60", lazy=False) as server:
        wait_for(server.workers, 20, "the worker")
        (worker,) = server.workers()
        os.kill(worker, signal.SIGABRT)
        assert server.process.wait(100) == 1
    assert [line for line in server.output if line.startswith("paddock: ")], server.output
    assert sum("preload failed" in line for line in server.output) == 1


def test_a_model_that_does_not_fit_ends_the_server_with_a_reason() -> None:
    with Server("-m", "fake:memory=1000", "--memory-limit", "100MiB", lazy=False) as server:
        assert server.process.wait(100) == 1
    (reason,) = [line for line in server.output if line.startswith("paddock: ")]
    assert "fake" in reason and "--lazy" in reason


@pytest.mark.parametrize(("method", "path"), [("GET", "/slots"), ("POST", "/slots/0?action=erase")])
def test_a_query_to_a_dying_worker_fails_at_once(method: str, path: str) -> None:
    with Server("-m", "fake:") as server, ThreadPoolExecutor(1) as pool:
        server.chat("say: x")
        (worker,) = server.workers()
        os.kill(worker, signal.SIGSTOP)  # so that it cannot answer before it dies
        asking = pool.submit(server.client.request, method, path)
        with pytest.raises(TimeoutError):
            asking.result(0.3)
        os.kill(worker, signal.SIGKILL)
        response = asking.result(25)  # before the watchdog acts
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "worker_crashed"
