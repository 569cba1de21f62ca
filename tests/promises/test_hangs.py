"""Promise 1 for workers that hang instead of crashing."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.server import Server, alive, chat_body, events, wait_for
from tests.tiers import full

CHAT = "/v1/chat/completions"


def _settings(folder: Path, **manager: object) -> str:
    file = folder / "paddock.json"
    file.write_text(json.dumps({"model_manager": manager}))
    return str(file)


def test_a_stopped_worker_is_killed_and_replaced(tmp_path: Path) -> None:
    config = _settings(tmp_path, model="fake:delay=0.02", silence_timeout=10)
    with Server("--config", config) as server:
        with server.client.stream("POST", CHAT, json=chat_body("hello", stream=True)) as response:
            stream = events(response)
            assert next(stream)[0] == "message"
            (pid,) = server.workers()
            os.kill(pid, signal.SIGSTOP)
            rest = list(stream)
        event, data = rest[-1]
        assert event == "error"
        error = json.loads(data)["error"]
        assert error["code"] == "worker_crashed"
        assert "hung" in error["message"] and "silence_timeout" in error["message"]
        assert "SIGKILL" not in error["message"], "the watchdog killed it"
        wait_for(lambda: not alive(pid), 10, "the stopped worker to end")
        assert server.chat("say: back")["choices"][0]["message"]["content"] == "back"


@full
def test_a_stopped_worker_is_killed_after_its_client_disconnects(tmp_path: Path) -> None:
    config = _settings(tmp_path, model="fake:delay=0.02", silence_timeout=10)
    with Server("--config", config) as server:
        with server.client.stream("POST", CHAT, json=chat_body("hello", stream=True)) as response:
            next(events(response))
            (pid,) = server.workers()
            os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: not alive(pid), 30, "the stopped worker to end")
        assert server.chat("say: back")["choices"][0]["message"]["content"] == "back"


@pytest.mark.parametrize("kind", ["generation", pytest.param("embedding", marks=full)])
def test_a_step_that_hangs_is_tried_twice_and_the_worker_is_replaced(tmp_path: Path, kind: str) -> None:
    vectors = kind == "embedding"
    config = _settings(tmp_path, model="fake:hang=1", hang_timeout=3, embedding=vectors)
    path = "/v1/embeddings" if vectors else CHAT
    with Server("--config", config, "--metrics") as server:

        def body(text: str) -> dict[str, object]:
            return {"input": text} if vectors else chat_body(text)

        assert server.client.post(path, json=body("hello")).status_code == 200
        (pid,) = server.workers()
        response = server.client.post(path, json=body("hang: now"))
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        error = response.json()["error"]
        assert error["code"] == "worker_crashed"
        assert "hung" in error["message"] and "hang_timeout" in error["message"]
        response = server.client.post(path, json=body("hello"))
        assert response.status_code == 200, response.text
        assert server.workers() != [pid]
        metrics = server.client.get("/metrics").text.splitlines()
        (hangs,) = [line for line in metrics if line.startswith("paddock_model_crashes_total{") and '"hang"' in line]
        assert hangs.endswith(" 2.0"), "the request is tried twice"


@full
def test_a_long_step_is_not_a_hang(tmp_path: Path) -> None:
    config = _settings(tmp_path, model="fake:delay=12", silence_timeout=10)
    with Server("--config", config) as server:
        assert server.chat("say: slow", max_tokens=1)["choices"][0]["message"]["content"] == "s"


@full
def test_a_worker_that_stops_during_its_load_is_killed(tmp_path: Path) -> None:
    config = _settings(tmp_path, model="fake:load=600", silence_timeout=10)
    with Server("--config", config) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.client.post, CHAT, json=chat_body("hello"))
        wait_for(server.workers, 20, "the worker")
        (worker,) = server.workers()
        os.kill(worker, signal.SIGSTOP)
        response = asked.result()
        assert response.status_code == 503
        assert "no message for" in response.text
        wait_for(lambda: not alive(worker), 10, "the worker to end")
