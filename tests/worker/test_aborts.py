"""Requests that are aborted before their prompt is prepared."""

from __future__ import annotations

import socket
import tempfile
import threading
from typing import Any

from paddock.errors import InvalidRequest
from paddock.types import GenerateRequest, TextPrompt
from paddock.wire.messages import Abort, Generate
from paddock.worker.preparation import Preparer
from paddock.worker.process import Worker


class _Preparer(Preparer):
    """Blocks on the first prompt and records which prompts it receives."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker._io.post, worker._live.__contains__)
        self.started, self.unblock = threading.Event(), threading.Event()
        self.prompts: list[str] = []

    def _prepare(self, id: int, request: Any) -> None:
        self.prompts.append(request.prompt.text)
        self.started.set()
        assert self.unblock.wait(60)
        raise InvalidRequest("not for this test")


def test_an_aborted_request_is_not_rendered() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, tempfile.TemporaryFile() as cpu_lock:
        worker = Worker(ours, cpu_lock.fileno())
        preparer = worker._preparer = _Preparer(worker)
        worker._live.max_queue = 8
        for id in range(1, 5):
            worker._on_message(Generate(id, GenerateRequest(TextPrompt(f"prompt {id}"))))
        assert preparer.started.wait(60)
        for id in (2, 4):
            worker._on_message(Abort(id))
        preparer.unblock.set()
        while worker._live:
            worker._io.run_once()
        assert preparer.prompts == ["prompt 1", "prompt 3"]
