"""A response body in fewer parts, with the same bytes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send

from paddock.cluster.response_batching import BatchedResponses

parts = st.lists(st.tuples(st.binary(max_size=9), st.booleans()), max_size=20)
"""Each part, and whether the writer yields to the event loop after it."""


async def _nothing() -> Message:
    raise AssertionError("not read")


async def _written(parts: list[tuple[bytes, bool]], *, slow: bool) -> list[Message]:
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"x-request-id", b"1"), (b"x-other", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part, pause in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
            if pause:
                await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"end", "more_body": False})

    async def send(message: Message) -> None:
        if slow:
            await asyncio.sleep(0)
        sent.append(message)

    await BatchedResponses(app)({"type": "http"}, _nothing, send)
    return sent


@given(parts, st.booleans())
def test_bytes_stay_in_order(parts: list[tuple[bytes, bool]], slow: bool) -> None:
    start, *body = asyncio.run(_written(parts, slow=slow))
    assert start["headers"] == [(b"x-other", b"2")]
    assert b"".join(message["body"] for message in body) == b"".join(part for part, _ in parts) + b"end"
    assert [message["more_body"] for message in body] == [True] * (len(body) - 1) + [False]
    assert len(body) <= sum(pause for _, pause in parts) + 2


def test_parts_are_joined() -> None:
    sent = asyncio.run(_written([(b"a", False), (b"b", False), (b"c", True), (b"d", True)], slow=False))
    assert [message.get("body") for message in sent] == [None, b"abc", b"d", b"end"]


def test_a_closed_connection_raises() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while True:
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await asyncio.sleep(0)

    async def send(message: Message) -> None:
        raise OSError("connection closed")

    with pytest.raises(OSError, match="connection closed"):
        asyncio.run(_call(app, send))


def test_a_slow_proxy_blocks_the_writer() -> None:
    written = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal written
        while True:
            await send({"type": "http.response.body", "body": b"x" * 1024, "more_body": True})
            written += 1

    async def send(message: Message) -> None:
        await asyncio.Event().wait()

    async def run() -> None:
        writing = asyncio.ensure_future(_call(app, send))
        while written < 64:  # noqa: ASYNC110 (step by step)
            await asyncio.sleep(0)
        for _ in range(1000):
            await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing

    asyncio.run(run())
    assert 64 <= written < 200


async def _call(app: Any, send: Send) -> None:
    await BatchedResponses(app)({"type": "http"}, _nothing, send)
