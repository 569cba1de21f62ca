"""What counts as work, so that only a thread that hangs is taken to hang."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty

import pytest

from paddock.worker.native_thread import NativeThread


def _thread() -> NativeThread[str]:
    thread: NativeThread[str] = NativeThread(lambda _event: None)
    thread.deciding.acquire()  # as from its beginning on
    return thread


def test_work_begins_with_what_it_is_told_or_finds_nothing_to_wait_for() -> None:
    thread = _thread()
    assert thread.in_step == 0, "it has not begun"
    thread.tell("something")
    assert thread._next(wait=True) == "something"
    first = thread.in_step
    assert 0 < first < thread.in_step
    with pytest.raises(Empty):
        thread._next(wait=False)
    assert thread.in_step > 0


def test_waiting_for_a_turn_is_no_work() -> None:
    thread = _thread()
    while_waiting = []

    @contextmanager
    def turn() -> Iterator[None]:
        while_waiting.append(thread.in_step)
        yield

    thread.tell("something")
    thread._next(wait=True)
    with thread._in_turn(turn()):
        assert thread.in_step > 0
    assert while_waiting == [0]
    assert thread.in_step > 0, "what follows a step is part of it"
