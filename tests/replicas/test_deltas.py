"""The delta stream of an attempt."""

from __future__ import annotations

import asyncio
import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.errors import PaddockError, ReplicaLost
from paddock.replicas.deltas import Deltas
from paddock.wire.messages import Delta

_LOST = ReplicaLost("it broke off")

lengths = st.lists(st.integers(0, 3), min_size=1, max_size=4)


@st.composite
def answers(draw: st.DrawFn) -> tuple[int, list[Delta]]:
    """How many there are, and the deltas of all of them in some order."""
    found = draw(lengths)
    order = draw(st.permutations([index for index, length in enumerate(found) for _ in range(length + 1)]))
    told, left = [], list(found)
    for place, index in enumerate(order):
        told.append(Delta(1, f"{place} ", index, finish=None if left[index] else "stop"))
        left[index] -= 1
    return len(found), told


async def _read(deltas: Deltas) -> tuple[list[Delta], PaddockError | None]:
    """Everything until it ends, which it does for good."""
    found = []
    problem: PaddockError | None = None
    try:
        async for delta in deltas:
            found.append(delta)
    except PaddockError as error:
        problem = error
    assert await anext(deltas, None) is None, "neither a delta nor an error comes twice"
    return found, problem


@given(answers())
def test_ends_after_the_last_delta(told: tuple[int, list[Delta]]) -> None:
    async def scenario() -> None:
        deltas = Deltas(told[0])
        deltas._accept()
        for delta in [*told[1], Delta(1, "nobody waits for this")]:
            deltas._events.put_nowait(delta)
        await deltas.accepted()
        assert await _read(deltas) == (told[1], None)

    asyncio.run(scenario())


@given(answers(), st.data())
def test_deltas_before_an_error_are_read_first(told: tuple[int, list[Delta]], data: st.DataObject) -> None:
    before = told[1][: data.draw(st.integers(0, len(told[1]) - 1))]

    async def scenario() -> None:
        deltas = Deltas(told[0])
        deltas._accept()
        for delta in before:
            deltas._events.put_nowait(delta)
        deltas._end(_LOST)
        await deltas.accepted()
        assert await _read(deltas) == (before, _LOST)

    asyncio.run(scenario())


@given(answers(), st.data())
def test_received_keeps_the_order(told: tuple[int, list[Delta]], data: st.DataObject) -> None:
    """However the deltas come, reading what is at hand after each one that was waited for misses and repeats none."""
    portions = data.draw(st.lists(st.integers(1, 4), min_size=len(told[1]), max_size=len(told[1])))
    broken = data.draw(st.booleans())
    heard = told[1][:-1] if broken else told[1]

    async def scenario() -> None:
        deltas = Deltas(told[0])
        deltas._accept()
        left, found = list(heard), []
        for portion in portions:
            for delta in left[:portion]:
                deltas._events.put_nowait(delta)
            del left[:portion]
            if not left and broken:
                deltas._end(_LOST)
            try:
                async for delta in deltas:
                    found += [delta, *deltas.received()]
                    if left:
                        break
            except ReplicaLost:
                assert broken
            if not left:
                break
        assert found == heard
        assert deltas.received() == []

    asyncio.run(scenario())


def test_refused_request() -> None:
    async def scenario() -> None:
        deltas = Deltas(1)
        deltas._end(_LOST)
        with pytest.raises(ReplicaLost):
            await deltas.accepted()

    asyncio.run(scenario())


def test_unawaited_refusal_and_late_acceptance() -> None:
    complaints: list[object] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        Deltas(1)._end(_LOST)
        deltas = Deltas(1)
        waiting = asyncio.ensure_future(deltas.accepted())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        deltas._accept()
        gc.collect()

    asyncio.run(scenario())
    assert not complaints


@given(st.integers(1, 5))
def test_an_error_reaches_a_slow_reader(most_unread: int) -> None:
    async def scenario() -> None:
        deltas = Deltas(1, most_unread)
        deltas._accept()
        told = [Delta(1, str(place)) for place in range(most_unread)]
        for delta in told:
            deltas._events.put_nowait(delta)
        with pytest.raises(asyncio.QueueFull):
            deltas._events.put_nowait(Delta(1, "more"))
        deltas._end(_LOST)
        assert await _read(deltas) == (told[1:], _LOST)

    asyncio.run(scenario())


def test_nothing_is_read_after_close() -> None:
    async def scenario() -> None:
        deltas = Deltas(1)
        deltas._accept()
        deltas._events.put_nowait(Delta(1, "too late"))
        deltas.close()
        assert await _read(deltas) == ([], None)

    asyncio.run(scenario())
