"""Out of memory during a load is reported as such, and the server keeps running."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.server import Server, chat_body, child_workers, wait_for
from tests.tiers import full

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


@full
def test_who_starts_the_server_may_ignore_ended_children(tmp_path: Path) -> None:
    """Some supervisors do. Then the system tells nobody how a process ended, unless the server wants to know."""
    command = [
        sys.executable,
        "-m",
        "paddock",
        "serve",
        "-m",
        "fake:load=60",
        "--port",
        "0",
        "--data-dir",
        str(tmp_path),
    ]
    previous = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    finally:
        signal.signal(signal.SIGCHLD, previous)
    with process, process.stdout as output:  # type: ignore[union-attr]
        wait_for(lambda: child_workers(process.pid), 30, "the worker to start")
        (worker,) = child_workers(process.pid)
        os.kill(worker, signal.SIGKILL)
        log = output.read()  # without its only model the server ends
    assert "killed (SIGKILL), probably because memory ran out" in log, log


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
