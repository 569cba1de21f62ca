from __future__ import annotations

import socket
import tempfile
import threading
from typing import Any

from paddock.errors import InvalidRequest
from paddock.types import GenerateRequest, TextPrompt
from paddock.wire import Abort, Generate
from paddock.worker.process import Worker


class _Prompts:
    """Takes its time over the first prompt, and remembers which it was given."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.read_ids: list[int] = []

    def read(self, request: GenerateRequest) -> Any:
        self.read_ids.append(request.id)
        self.begun.set()
        assert self.go_on.wait(60)
        raise InvalidRequest("not for this test")


def test_a_request_that_was_aborted_is_not_rendered() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, tempfile.TemporaryFile() as turns:
        worker, prompts = Worker(ours, turns.fileno()), _Prompts()
        worker._prompts = prompts  # type: ignore[assignment]
        for id in range(1, 5):
            worker._on_message(Generate(GenerateRequest(id, TextPrompt("Once"))))
        assert prompts.begun.wait(60)
        for id in (2, 4):
            worker._on_message(Abort(id))
        prompts.go_on.set()
        while worker._live:
            worker._selector.select(1)
            worker._drain_wakeups()
            worker._handle_posted()
        assert prompts.read_ids == [1, 3]
