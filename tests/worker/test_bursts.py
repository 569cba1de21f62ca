"""The requests of a burst share their first step, if the engine thread knows that more of them come."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from paddock.scheduling import Request
from paddock.types import SamplingParams
from paddock.worker.commands import Add, Command
from paddock.worker.cpu_lock import CpuLock
from paddock.worker.generation_thread import GenerationThread
from tests.options import engine_options
from tests.scheduling.test_chunks import train
from tests.scheduling.test_token_cost import X86


def _thread(is_expecting: Callable[[], bool]) -> GenerationThread:
    """It is not started: the test calls its methods."""
    lock = CpuLock(-1, threads=1, cpus=[0])
    options = engine_options(cache_ram_bytes=1 << 20)
    thread = GenerationThread(
        "fake:n_ctx=4096", options, lock, lambda _: None, lambda _: None, is_expecting=is_expecting
    )
    thread.state_lock.acquire()  # as `_main` does
    thread._open()
    train(thread._scheduler._budget, X86)
    return thread


def _question(thread: GenerationThread, id: int) -> Add:
    tokens = [1] * 15 + [id]
    return Add(Request(id, tokens, thread.engine.sampler(SamplingParams(), tokens), 1))


def test_the_first_step_waits_for_requests_that_are_being_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)  # a busy machine would take all of the time that is allowed
    coming = [2, 3]

    def is_expecting() -> bool:
        """The next one is there before the wait for it begins."""
        if coming:
            thread.tell(_question(thread, coming.pop(0)))
        return True

    thread = _thread(is_expecting)
    thread.tell(_question(thread, 1))
    thread._receive()
    assert thread._scheduler.queued == 3


def test_a_single_request_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = _thread(lambda: False)
    waits: list[float | None] = []
    wait = thread._next

    def record(patience: float | None) -> Command:
        waits.append(patience)
        return wait(patience)

    monkeypatch.setattr(thread, "_next", record)
    thread.tell(_question(thread, 1))
    thread._receive()
    assert thread._scheduler.queued == 1
    assert waits == [None], "only for the request itself"
