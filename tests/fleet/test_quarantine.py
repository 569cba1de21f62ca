from __future__ import annotations

import asyncio

from paddock.errors import QueueFull, WorkerCrashed
from paddock.fleet.requests.quarantine import Quarantine


def _crash(requests: int) -> WorkerCrashed:
    error = WorkerCrashed("ended")
    error.requests = requests
    return error


def test_suspects_are_retried_one_at_a_time() -> None:
    async def run() -> None:
        lock = asyncio.Lock()
        one, other, later = (Quarantine(lock) for _ in range(3))
        for request in (one, other, later):
            await request.begin_attempt()  # no request is a suspect, so none waits
        one.delta_received()
        assert not one.failed(_crash(3)), "any of the three may be the cause"
        assert not other.failed(_crash(3))
        assert not later.failed(QueueFull("full"))
        await later.begin_attempt()
        await one.begin_attempt()
        waiting = asyncio.ensure_future(other.begin_attempt())
        one.delta_received()
        await asyncio.sleep(0)
        assert not waiting.done(), "the retry has not got further than the first attempt"
        one.delta_received()
        await waiting
        assert not one.failed(_crash(2)), "another request was in quarantine"
        assert not other.failed(_crash(2)), "the one that was released may be the cause"
        await other.begin_attempt()
        assert other.failed(_crash(1))
        await one.begin_attempt()
        one.release()
        one.release()
        assert not lock.locked()

    asyncio.run(run())


def test_a_crash_beside_other_requests_is_retried_once_more() -> None:
    async def run() -> None:
        request = Quarantine(asyncio.Lock())
        outcomes = []
        for _ in range(3):
            await request.begin_attempt()
            outcomes.append(request.failed(_crash(2)))
        assert outcomes == [False, False, True]

    asyncio.run(run())


def test_a_request_that_crashes_the_worker_alone_fails_also_if_it_got_further() -> None:
    """Without a seed an answer differs, so the token that crashes the worker comes sooner or later."""

    async def run() -> None:
        lock = asyncio.Lock()
        request = Quarantine(lock)
        await request.begin_attempt()
        assert not request.failed(_crash(1)), "the first crash is retried"
        await request.begin_attempt()
        request.delta_received()
        assert not lock.locked(), "it got further, so others need not wait for it"
        assert request.failed(_crash(1))

    asyncio.run(run())
