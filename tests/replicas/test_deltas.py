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
    """The number of completions, and their deltas in random order."""
    found = draw(lengths)
    order = draw(st.permutations([index for index, length in enumerate(found) for _ in range(length + 1)]))
    sent, left = [], list(found)
    for place, index in enumerate(order):
        sent.append(Delta(1, f"{place} ", index, finish=None if left[index] else "stop"))
        left[index] -= 1
    return len(found), sent


async def _read(deltas: Deltas) -> tuple[list[Delta], PaddockError | None]:
    """Read everything. After the end, nothing more arrives."""
    found = []
    problem: PaddockError | None = None
    try:
        async for delta in deltas:
            found.append(delta)
    except PaddockError as error:
        problem = error
    assert await anext(deltas, None) is None, "no delta and no error arrives twice"
    return found, problem


@given(answers())
def test_ends_after_the_last_delta(sent: tuple[int, list[Delta]]) -> None:
    async def scenario() -> None:
        deltas = Deltas(sent[0])
        deltas._accept()
        for delta in [*sent[1], Delta(1, "after the end")]:
            deltas._events.put_nowait(delta)
        await deltas.accepted()
        assert await _read(deltas) == (sent[1], None)

    asyncio.run(scenario())


@given(answers(), st.data())
def test_deltas_before_an_error_are_read_first(sent: tuple[int, list[Delta]], data: st.DataObject) -> None:
    before = sent[1][: data.draw(st.integers(0, len(sent[1]) - 1))]

    async def scenario() -> None:
        deltas = Deltas(sent[0])
        deltas._accept()
        for delta in before:
            deltas._events.put_nowait(delta)
        deltas._end(_LOST)
        await deltas.accepted()
        assert await _read(deltas) == (before, _LOST)

    asyncio.run(scenario())


@given(answers(), st.data())
def test_received_keeps_the_order(sent: tuple[int, list[Delta]], data: st.DataObject) -> None:
    """`received` after each awaited delta neither skips nor repeats one, in whatever batches they arrive."""
    portions = data.draw(st.lists(st.integers(1, 4), min_size=len(sent[1]), max_size=len(sent[1])))
    broken = data.draw(st.booleans())
    expected = sent[1][:-1] if broken else sent[1]

    async def scenario() -> None:
        deltas = Deltas(sent[0])
        deltas._accept()
        left, found = list(expected), []
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
        assert found == expected
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
    unhandled: list[object] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        Deltas(1)._end(_LOST)
        deltas = Deltas(1)
        waiting = asyncio.ensure_future(deltas.accepted())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        deltas._accept()
        gc.collect()

    asyncio.run(scenario())
    assert not unhandled


@given(st.integers(1, 5))
def test_an_error_reaches_a_slow_reader(most_unread: int) -> None:
    async def scenario() -> None:
        deltas = Deltas(1, most_unread)
        deltas._accept()
        sent = [Delta(1, str(place)) for place in range(most_unread)]
        for delta in sent:
            deltas._events.put_nowait(delta)
        with pytest.raises(asyncio.QueueFull):
            deltas._events.put_nowait(Delta(1, "more"))
        deltas._end(_LOST)
        assert await _read(deltas) == (sent[1:], _LOST)

    asyncio.run(scenario())


def test_nothing_is_read_after_close() -> None:
    async def scenario() -> None:
        deltas = Deltas(1)
        deltas._accept()
        deltas._events.put_nowait(Delta(1, "too late"))
        deltas.close()
        assert await _read(deltas) == ([], None)

    asyncio.run(scenario())
