"""Tells subscribers which model changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable

_MOST_UNREAD = 256


class Changes:
    """A slow subscriber misses changes."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[str | None]] = set()

    async def subscribe(self, names: Iterable[str]) -> AsyncGenerator[str]:
        """These names, then the name of each model that changes, until `close`."""
        queue: asyncio.Queue[str | None] = asyncio.Queue(_MOST_UNREAD)
        self._queues.add(queue)
        try:
            for name in list(names):
                yield name
            while (changed := await queue.get()) is not None:
                yield changed
        finally:
            self._queues.discard(queue)

    def notify(self, name: str) -> None:
        for queue in self._queues:
            if not queue.full():
                queue.put_nowait(name)

    def close(self) -> None:
        for queue in self._queues:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(None)
