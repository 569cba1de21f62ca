"""The health checks of a remote replica, with the statuses that the test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from paddock.config import ReplicaSettings
from paddock.errors import Unavailable
from paddock.replicas.remote import RemoteReplica
from paddock.types import ModelInfo

_INFO = ModelInfo("", 512, 512, 1, 1, 1, n_slots=2, fingerprint="fp_same")


def _run(statuses: list[int], act: Callable[[RemoteReplica], Coroutine[Any, Any, None]]) -> list[int]:
    """Act on a replica whose health checks have these statuses. Returns those that are left."""

    async def run() -> None:
        settings = ReplicaSettings(url="http://127.0.0.1:1")
        replica = RemoteReplica("a", settings, "m", deterministic=False, silence_timeout=1.0)

        async def health() -> int:
            await asyncio.sleep(0)
            return statuses.pop(0)

        async def read() -> None:
            replica.info = _INFO

        replica.upstream.health = health  # type: ignore[method-assign]
        replica._read_props = read  # type: ignore[method-assign]
        replica._scrape = read  # type: ignore[method-assign]
        await act(replica)
        await replica.close()

    asyncio.run(run())
    return statuses


def test_a_replica_that_was_slow_for_a_moment_serves() -> None:
    async def act(replica: RemoteReplica) -> None:
        for _ in range(3):
            await replica.check()
        assert (replica.usable, replica.is_doubtful) == (False, True)
        assert await replica.acquire(exact=False) is replica
        assert (replica.usable, replica.is_doubtful) == (True, False)

    assert _run([200, 0, 0, 200], act) == []


def test_many_requests_share_one_check() -> None:
    async def act(replica: RemoteReplica) -> None:
        for _ in range(3):
            await replica.check()
        missed = replica.condition.missed
        results = await asyncio.gather(*(replica.acquire(exact=False) for _ in range(9)), return_exceptions=True)
        assert all(isinstance(result, Unavailable) for result in results)
        assert replica.condition.missed == missed, "only checks at their time tell how long it has been silent"

    assert _run([200, 0, 0, 0, 200], act) == [200]


def test_a_request_waits_while_its_properties_are_read() -> None:
    """At the start, and again when it has recovered."""

    async def act(replica: RemoteReplica) -> None:
        for _ in range(2):
            begun, may_read = asyncio.Event(), asyncio.Event()

            async def read(begun: asyncio.Event = begun, may_read: asyncio.Event = may_read) -> None:
                begun.set()
                await may_read.wait()
                replica.info = _INFO

            replica._read_props = read  # type: ignore[method-assign]
            check = asyncio.create_task(replica.check())
            await begun.wait()
            assert (replica.usable, replica.is_doubtful) == (False, True)
            request = asyncio.create_task(replica.acquire(exact=False))
            await asyncio.sleep(0)
            assert not request.done()
            may_read.set()
            assert await request is replica
            await check
            for _ in range(2):
                await replica.check()
            assert replica.condition.health == "down"

    assert _run([200, 0, 0, 200, 0, 0], act) == []


def test_one_whose_requests_fail_is_not_doubtful() -> None:
    async def act(replica: RemoteReplica) -> None:
        for _ in range(3):
            await replica.check()
        for _ in range(2):
            replica.condition.failures.failed("no", now=1e12)
        assert not replica.is_doubtful

    assert _run([200, 0, 0], act) == []


def test_one_that_refused_a_connection_is_checked_again() -> None:
    async def act(replica: RemoteReplica) -> None:
        await replica.check()
        replica.condition.unreachable()
        with pytest.raises(Unavailable):
            await replica.acquire(exact=False)
        assert await replica.acquire(exact=False) is replica

    assert _run([200, 0, 200], act) == []
