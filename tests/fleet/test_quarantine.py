from __future__ import annotations

import asyncio

from paddock.errors import QueueFull, WorkerCrashed
from paddock.fleet.requests.quarantine import Quarantine


def test_suspects_are_retried_one_at_a_time() -> None:
    async def run() -> None:
        lock = asyncio.Lock()
        one, other, later = (Quarantine(lock) for _ in range(3))
        for request in (one, other, later):
            await request.begin_attempt()  # nobody is a suspect yet, so nobody waits
        one.delta_received()
        assert not one.failed(WorkerCrashed("gone")), "nobody knows yet whose doing it was"
        assert not other.failed(WorkerCrashed("gone"))
        assert not later.failed(QueueFull("full"))
        await later.begin_attempt()
        await one.begin_attempt()
        waiting = asyncio.ensure_future(other.begin_attempt())
        one.delta_received()
        await asyncio.sleep(0)
        assert not waiting.done(), "as far as it had come before"
        one.delta_received()
        await waiting
        assert not one.failed(WorkerCrashed("gone")), "another one was being tried"
        assert other.failed(WorkerCrashed("gone"))
        await one.begin_attempt()
        one.release()
        one.release()
        assert not lock.locked()

    asyncio.run(run())
