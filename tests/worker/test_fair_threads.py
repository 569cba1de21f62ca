"""Threads that API keys share: no key occupies all of them, and keys take turns."""

from __future__ import annotations

import threading
from collections.abc import Callable

from paddock.types import Origin
from paddock.worker.fair_threads import FairThreads

FLOOD, OTHER = Origin(key="flood"), Origin(key="other")


def _do(work: Callable[[], object]) -> None:
    work()


def test_a_key_with_much_work_leaves_threads_for_others() -> None:
    gate, done = threading.Event(), threading.Event()
    threads = FairThreads("test", 4, per_key=2)
    for _ in range(24):
        threads.add(FLOOD, lambda: _do(gate.wait))
    threads.add(OTHER, done.set)
    assert done.wait(300), "while all works of the other key are blocked"
    gate.set()


def test_keys_take_turns() -> None:
    """With one thread, as when the others are busy."""
    order: list[str] = []
    gate, started, over = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        gate.wait()

    threads = FairThreads("test", 1, per_key=1)
    threads.add(FLOOD, hold)
    assert started.wait(300)
    for _ in range(24):
        threads.add(FLOOD, lambda: order.append("flood"))
    threads.add(OTHER, lambda: order.append("other"))
    threads.add(FLOOD, over.set)
    gate.set()
    assert over.wait(300)
    assert order.index("other") <= 1
    assert len(order) == 25
