"""Promise 1, of workers that do not die but do not go on either."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.server import Server, alive, chat_body, events, wait_for

CHAT = "/v1/chat/completions"


def _settings(folder: Path, **manager: object) -> str:
    file = folder / "paddock.json"
    file.write_text(json.dumps({"model_manager": manager}))
    return str(file)


def test_a_worker_that_is_stopped_is_ended_and_comes_back(tmp_path: Path) -> None:
    config = _settings(tmp_path, model="fake:delay=0.02", silence_timeout=5)
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
        assert "SIGKILL" not in error["message"], "nobody else did it"
        wait_for(lambda: not alive(pid), 10, "the stopped worker to be gone")
        assert server.chat("say: back")["choices"][0]["message"]["content"] == "back"


def test_a_worker_that_is_stopped_is_ended_also_when_its_client_has_left(tmp_path: Path) -> None:
    config = _settings(tmp_path, model="fake:delay=0.02", silence_timeout=5)
    with Server("--config", config) as server:
        with server.client.stream("POST", CHAT, json=chat_body("hello", stream=True)) as response:
            next(events(response))
            (pid,) = server.workers()
            os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: not alive(pid), 30, "the stopped worker to be gone")
        assert server.chat("say: back")["choices"][0]["message"]["content"] == "back"


@pytest.mark.parametrize("kind", ["generation", "embedding"])
def test_a_step_that_does_not_end_is_ended_and_the_worker_comes_back(tmp_path: Path, kind: str) -> None:
    vectors = kind == "embedding"
    config = _settings(tmp_path, model="fake:hang=1", silence_timeout=5, hang_timeout=3, embedding=vectors)
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


def test_a_step_that_is_only_long_is_left_alone(tmp_path: Path) -> None:
    config = _settings(tmp_path, model="fake:delay=6", silence_timeout=5)
    with Server("--config", config) as server:
        assert server.chat("say: slow", max_tokens=1)["choices"][0]["message"]["content"] == "s"


def test_a_worker_that_is_stopped_while_it_loads_is_given_up(tmp_path: Path) -> None:
    config = _settings(tmp_path, model="fake:load=600", silence_timeout=5)
    with Server("--config", config) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.client.post, CHAT, json=chat_body("hello"))
        wait_for(server.workers, 20, "the worker")
        (worker,) = server.workers()
        os.kill(worker, signal.SIGSTOP)
        response = asked.result()
        assert response.status_code == 503
        assert "no message for" in response.text
        wait_for(lambda: not alive(worker), 10, "it to be gone")
