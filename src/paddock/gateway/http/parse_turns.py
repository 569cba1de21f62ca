"""Large bodies are parsed one at a time, so that they do not block the event loop for long.

Parsing cannot be interrupted and holds the GIL, so a thread would not help.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

LARGE: Final = 16 * 1024
"""Bytes. Smaller bodies are parsed at once."""
_SHARE: Final = 0.25


class ParseTurns:
    """One large body at a time, owners in turn. A pause follows each, so that large bodies use at most `share` of the
    event loop's time.
    """

    def __init__(self, share: float = _SHARE, clock: Callable[[], float] | None = None) -> None:
        self._pause_ratio = 1 / share - 1
        self._clock = clock
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By owner, in the order of their turns."""
        self._busy = False

    @asynccontextmanager
    async def turn(self, owner: str, size: int) -> AsyncIterator[None]:
        """Parse a body of this size in the block."""
        if size <= LARGE:
            yield
            return
        await self._wait(owner)
        now = self._clock or asyncio.get_running_loop().time
        begun = now()
        try:
            yield
        finally:
            pause = (now() - begun) * self._pause_ratio
            asyncio.get_running_loop().call_later(pause, self._next)

    async def _wait(self, owner: str) -> None:
        if not self._busy:
            self._busy = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._next()  # the turn came at the same moment: pass it on
            raise

    def _next(self) -> None:
        while self._waiting:
            owner, turns = next(iter(self._waiting.items()))
            turn = turns.popleft()
            del self._waiting[owner]
            if turns:
                self._waiting[owner] = turns  # behind the other owners
            if not turn.done():
                turn.set_result(None)
                return
        self._busy = False
