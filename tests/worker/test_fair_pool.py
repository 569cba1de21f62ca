"""Jobs that cannot be cut: no key has all threads, and keys take turns for them."""

from __future__ import annotations

import threading

from paddock.types import Origin
from paddock.worker.fair_pool import FairPool

FLOOD, OTHER = Origin(key="flood"), Origin(key="other")


def test_a_key_with_many_jobs_leaves_threads_for_others() -> None:
    gate, done = threading.Event(), threading.Event()
    pool = FairPool("test", 4, per_key=2)
    for _ in range(24):
        pool.submit(FLOOD, gate.wait)
    pool.submit(OTHER, done.set)
    assert done.wait(300), "while none of the others has ended"
    gate.set()


def test_keys_take_turns() -> None:
    """With one thread, as when all of them are taken by several keys."""
    order: list[str] = []
    gate, started, over = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        gate.wait()

    pool = FairPool("test", 1, per_key=1)
    pool.submit(FLOOD, hold)
    assert started.wait(300)
    for _ in range(24):
        pool.submit(FLOOD, lambda: order.append("flood"))
    pool.submit(OTHER, lambda: order.append("other"))
    pool.submit(FLOOD, over.set)
    gate.set()
    assert over.wait(300)
    assert order.index("other") <= 1
    assert len(order) == 25
