"""The stream of deltas of one request attempt."""

from __future__ import annotations

import asyncio
from typing import Self

from paddock.errors import PaddockError
from paddock.wire.messages import Delta


class Deltas:
    """An async iterator of a request's deltas that ends after the last one, or raises the error that ended the request.

    The base class of attempts. A subclass calls `_accept` first, puts each delta into `_events`, and calls `_end` if no
    more deltas come. After `close` nothing is delivered; closing a finished stream is harmless.
    """

    def __init__(self, answers: int, most_unread: int = 0) -> None:
        """Of `answers` completions. At most `most_unread` deltas are buffered, then putting one waits; 0: no limit."""
        self.answers = answers
        self._unread = answers
        """Completions whose last delta has not been read."""
        self._over = False
        self._events: asyncio.Queue[Delta | PaddockError] = asyncio.Queue(most_unread)
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Retrieves the exception even if no one awaits it.
        self._accepted.add_done_callback(lambda future: future.cancelled() or future.exception())

    async def accepted(self) -> None:
        """Wait until the request is accepted, or raise why it is not."""
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

    def received(self) -> list[Delta]:
        """The deltas that have arrived, without waiting. An error stays for the next read."""
        found: list[Delta] = []
        while not self._over and not self._events.empty():
            event = self._events.get_nowait()
            if isinstance(event, PaddockError):
                self._events.put_nowait(event)  # nothing follows it
                break
            found.append(self._read(event))
        return found

    def _read(self, delta: Delta) -> Delta:
        if delta.finish is not None:
            self._unread -= 1
            self._over = self._unread == 0
        return delta

    def close(self) -> None:
        """Stop reading."""
        self._over = True

    def _accept(self) -> None:
        if not self._accepted.done():
            self._accepted.set_result(None)

    def _end(self, error: PaddockError) -> None:
        """End with this error: the request was refused, or its completions stay incomplete."""
        if not self._accepted.done():
            self._accepted.set_exception(error)
            return
        while self._events.full():  # make room: the error must be delivered
            self._events.get_nowait()
        self._events.put_nowait(error)
