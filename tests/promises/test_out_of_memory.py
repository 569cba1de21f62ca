"""Out of memory during a load is reported as such, and the server keeps running."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.server import Server, chat_body, wait_for

CHAT = "/v1/chat/completions"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of other processes are Linux's")


def test_libllama_cannot_allocate() -> None:
    with Server("-c", "500000", "-np", "64") as server:  # takes 11 GiB
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, (4 << 30, 4 << 30))  # also for its worker
        response = server.client.post(CHAT, json=chat_body("hello"))
        assert response.status_code == 503
        error = response.json()["error"]
        assert error["code"] == "out_of_memory", error
        assert "500000 tokens" in error["message"]
        assert server.client.get("/health").status_code == 200


def test_a_worker_killed_during_its_load() -> None:
    with Server("-m", "fake:load=60") as server, ThreadPoolExecutor(1) as pool:
        asking = pool.submit(server.client.post, CHAT, json=chat_body("hello"))
        wait_for(server.workers, 10, "the worker to start")
        (worker,) = server.workers()
        os.kill(worker, signal.SIGKILL)
        response = asking.result(200)
        assert response.status_code == 503
        error = response.json()["error"]
        assert error["code"] == "out_of_memory"
        assert "memory" in error["message"]


def test_a_load_timeout_is_not_out_of_memory(tmp_path: Path) -> None:
    config = tmp_path / "paddock.json"
    config.write_text(json.dumps({"model_manager": {"model": "fake:load=60", "load_timeout": 0.1}}))
    with Server("--config", str(config)) as server:
        response = server.client.post(CHAT, json=chat_body("hello"))
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "model_load_failed"


def test_pinned_models_are_not_unloaded_for_it(tmp_path: Path) -> None:
    models = {"other": {"path": "fake:", "pinned": True}, "alone": {"path": "fake:alone=1"}}
    config = tmp_path / "paddock.json"
    config.write_text(json.dumps({"model_manager": {"models": models}}))
    with Server("--config", str(config)) as server:
        server.chat("say: here", model="other")
        response = server.client.post(CHAT, json=chat_body("say: here", model="alone"))
        assert response.json()["error"]["code"] == "out_of_memory"
        assert server.chat("say: here", model="other")["choices"][0]["message"]["content"] == "here"
