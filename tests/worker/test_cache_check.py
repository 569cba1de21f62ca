"""PADDOCK_CHECK_CACHE: an idle worker checks its cache, and exits if a counter is wrong."""

from __future__ import annotations

from queue import SimpleQueue

import pytest

from paddock.fleet.process.environment import inherited
from paddock.wire.messages import Slots, Stats, Step
from paddock.worker.commands import Died, Event, Opened, Report
from paddock.worker.cpu_lock import CpuLock
from paddock.worker.generation_thread import CHECK_CACHE, GenerationThread
from tests.options import engine_options


@pytest.mark.parametrize("is_on", [True, False])
def test_an_idle_worker_with_a_wrong_counter_exits_if_the_check_is_on(
    monkeypatch: pytest.MonkeyPatch, is_on: bool
) -> None:
    monkeypatch.setenv(CHECK_CACHE, "1" if is_on else "0")
    events: SimpleQueue[Event] = SimpleQueue()
    sent: SimpleQueue[Step | Slots | Stats] = SimpleQueue()
    thread = GenerationThread(
        "fake:n_ctx=512", engine_options(), CpuLock(-1, threads=1, cpus=[0]), events.put, sent.put
    )
    thread.start()
    while not isinstance(events.get(timeout=30), Opened):
        pass
    _report(thread, sent, 1)
    with thread.state_lock:
        thread._scheduler.cache._quota.total += 1
    _report(thread, sent, 2)
    if is_on:
        died = events.get(timeout=30)
        assert isinstance(died, Died)
        assert "CacheCorrupted" in str(died.error)
    else:
        _report(thread, sent, 3)
        assert events.empty()


def _report(thread: GenerationThread, sent: SimpleQueue[Step | Slots | Stats], id: int) -> None:
    """Wake the thread and wait for its answer."""
    thread.tell(Report(id))
    while not isinstance(sent.get(timeout=30), Slots):
        pass


def test_workers_inherit_the_variable() -> None:
    assert inherited({CHECK_CACHE: "1", "PADDOCK_SERVER__PORT": "1"}) == {CHECK_CACHE: "1"}
