"""What is told of a request under way, as whoever asked reads it."""

from __future__ import annotations

import asyncio
from typing import Self

from paddock.errors import PaddockError
from paddock.wire import Delta


class Deltas:
    """A request's deltas, in order: an async iterator that ends after the last, or raises once what came instead of it.

    Every attempt is one. Who answers calls `_accept` before anything else, puts each delta into `_events`, and calls
    `_end`, at any time, if no more comes. After `close` nothing is read any more; it is harmless when all was read.
    """

    def __init__(self, answers: int, most_unread: int = 0) -> None:
        """Of so many answers. `most_unread` deltas are kept for a reader, then putting one waits; 0 for any number."""
        self.answers = answers
        self._unread = answers
        """Answers of which the last delta has not been read."""
        self._over = False
        self._events: asyncio.Queue[Delta | PaddockError] = asyncio.Queue(most_unread)
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Nobody may be there to hear of a refusal.
        self._accepted.add_done_callback(lambda future: future.cancelled() or future.exception())

    async def accepted(self) -> None:
        """Wait until the request was taken, or raise why it was not."""
        await self._accepted

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        if self._over:
            raise StopAsyncIteration
        event = await self._events.get()
        if isinstance(event, PaddockError):
            self._over = True
            raise event
        return self._read(event)

    def at_hand(self) -> list[Delta]:
        """Those that have come and need not be waited for. An error stays for whoever waits for the next one."""
        found: list[Delta] = []
        while not self._over and not self._events.empty():
            event = self._events.get_nowait()
            if isinstance(event, PaddockError):
                self._events.put_nowait(event)  # nothing comes after it
                break
            found.append(self._read(event))
        return found

    def _read(self, delta: Delta) -> Delta:
        if delta.finish is not None:
            self._unread -= 1
            self._over = self._unread == 0
        return delta

    def close(self) -> None:
        """Nobody listens any more."""
        self._over = True

    def _accept(self) -> None:
        if not self._accepted.done():
            self._accepted.set_result(None)

    def _end(self, error: PaddockError) -> None:
        """No more comes, for this reason: the request was not taken, or its answers stay incomplete."""
        if not self._accepted.done():
            self._accepted.set_exception(error)
            return
        while self._events.full():  # who does not read must be told all the same
            self._events.get_nowait()
        self._events.put_nowait(error)
