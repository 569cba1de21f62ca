"""Delivers values to any number of subscribers without waiting for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Broadcast(Generic[T]):
    """A subscriber that is `most_unread` values behind misses the oldest."""

    def __init__(self, most_unread: int) -> None:
        self._most_unread = most_unread
        self._queues: set[asyncio.Queue[T | None]] = set()

    def __len__(self) -> int:
        """The number of subscribers."""
        return len(self._queues)

    async def subscribe(self, first: Iterable[T] = ()) -> AsyncGenerator[T]:
        """These values, then each published one, until `close`."""
        queue: asyncio.Queue[T | None] = asyncio.Queue(self._most_unread)
        self._queues.add(queue)
        try:
            for value in list(first):
                yield value
            while (published := await queue.get()) is not None:
                yield published
        finally:
            self._queues.discard(queue)

    def publish(self, value: T | None) -> None:
        for queue in self._queues:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(value)

    def close(self) -> None:
        """End all subscriptions."""
        self.publish(None)
