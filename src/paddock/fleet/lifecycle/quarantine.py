"""Requests that were under way in a worker when it crashed are tried again one at a time.

Any of them may be the cause. Tried again together, all of them would be there when the worker crashes again, and fail
with the one that is to blame.
"""

from __future__ import annotations

import asyncio

from paddock.errors import PaddockError, ReplicaLost, WorkerCrashed


class Quarantine:
    """One request's part in it. Those of a model share the lock."""

    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock = lock
        self._is_held = False
        self._is_suspect = False
        self._deltas = 0
        self._reached = 0
        """The deltas that had come when a worker crashed: beyond them it is cleared."""

    async def begin_attempt(self) -> None:
        """Wait for its turn, if it was there when a worker crashed."""
        self._deltas = 0
        if self._is_suspect and not self._is_held:
            await self._lock.acquire()
            self._is_held = True

    def advanced(self) -> None:
        """A delta came."""
        self._deltas += 1
        if self._is_held and self._deltas > self._reached:
            self.leave()

    def failed(self, error: PaddockError) -> bool:
        """The attempt did. Returns whether the request is to blame: a worker crashed while it was the one being tried
        again. What crashes while another one is tried is that one's doing.
        """
        # A server elsewhere that is lost was more often restarted than ended by a request.
        has_crashed = isinstance(error, WorkerCrashed) and not isinstance(error, ReplicaLost)
        is_to_blame = has_crashed and self._is_held
        if has_crashed:
            self._is_suspect = True
            self._reached = max(self._reached, self._deltas)
        self.leave()
        return is_to_blame

    def leave(self) -> None:
        if self._is_held:
            self._is_held = False
            self._lock.release()
