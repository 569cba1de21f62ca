"""Work that stops when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.types import Receive

from paddock.errors import ClientLeft

T = TypeVar("T")


async def until_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work, which is cancelled when the client disconnects. The body must have been read."""
    done = await run_until_disconnect(request.receive, work)
    if done.cancelled():
        raise ClientLeft("the client disconnected before the answer was ready")
    return done.result()


async def run_until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run the work until it ends or the client disconnects. The task has ended, or is cancelled."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()  # does nothing to a task that is done
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
    return working


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
