"""`in_step`, by which the watchdog finds an engine thread that hangs: waiting does not count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty
from types import SimpleNamespace
from typing import Any

import pytest

from paddock.wire.messages import Stats
from paddock.worker.commands import Command, Report
from paddock.worker.cpu_lock import CpuLock
from paddock.worker.engine_thread import EngineThread
from tests.options import engine_options


class _Lock(CpuLock):
    """Calls a function while the thread waits for the lock."""

    def __init__(self, on_wait: Any) -> None:
        self._on_wait = on_wait

    @contextmanager
    def hold(self) -> Iterator[None]:
        self._on_wait()
        yield


class _Thread(EngineThread):
    """It is not started: the test calls its methods."""

    def __init__(self) -> None:
        self.while_waiting: list[float] = []
        lock = _Lock(lambda: self.while_waiting.append(self.in_step))
        super().__init__("fake:", engine_options(), lock, lambda _event: None, lambda _message: None)
        self.engine: Any = SimpleNamespace(is_cpu_bound=True)
        self.state_lock.acquire()  # as `_main` does

    _is_idle = True

    def _open(self) -> None: ...
    def _handle(self, command: Command) -> None: ...
    def _step(self) -> None: ...
    def _stats(self, now: float) -> Stats:
        raise NotImplementedError


def test_a_step_begins_when_a_command_is_taken_or_none_is_waiting() -> None:
    thread = _Thread()
    assert thread.in_step == 0, "before the first command"
    thread.tell(Report(1))
    assert thread._next(None) == Report(1)
    first = thread.in_step
    assert 0 < first < thread.in_step
    with pytest.raises(Empty):
        thread._next(0.0)
    assert thread.in_step > 0


def test_waiting_for_the_cpu_lock_is_not_part_of_a_step() -> None:
    thread = _Thread()
    thread.tell(Report(1))
    thread._next(None)
    with thread._computing():
        assert thread.in_step > 0
    assert thread.while_waiting == [0]
    assert thread.in_step > 0, "the work after the computation is part of the step"
