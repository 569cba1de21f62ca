"""Retries the requests of a crashed worker one at a time.

Any of them may be the cause. If they were retried together, the next crash would fail all of them again.
"""

from __future__ import annotations

import asyncio

from paddock.errors import PaddockError, ReplicaLost, WorkerCrashed


class Quarantine:
    """The retries of one request. All requests to a model share the lock."""

    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock = lock
        self._is_held = False
        self._is_suspect = False
        self._has_crashed_held = False
        self._deltas = 0
        self._reached = 0
        """The deltas received before the crash. Once it gets further, it is not the cause."""

    async def begin_attempt(self) -> None:
        """Wait for the lock, if a worker crashed with this request."""
        self._deltas = 0
        if self._is_suspect and not self._is_held:
            await self._lock.acquire()
            self._is_held = True

    def delta_received(self) -> None:
        self._deltas += 1
        if self._is_held and self._deltas > self._reached:
            self.release()

    def failed(self, error: PaddockError) -> bool:
        """Record a failed attempt. Returns whether this request caused the crash.

        It did if it was retried and the worker had no other request, however far it got. If there were others, a new
        one may be the cause, so this one is retried once more.
        """
        # A lost remote server was more often restarted than crashed by a request.
        is_cause = False
        if isinstance(error, WorkerCrashed) and not isinstance(error, ReplicaLost):
            was_alone = self._is_suspect and error.requests == 1
            is_cause = was_alone or (self._is_held and self._has_crashed_held)
            self._has_crashed_held |= self._is_held
            self._is_suspect = True
            self._reached = max(self._reached, self._deltas)
        self.release()
        return is_cause

    def release(self) -> None:
        if self._is_held:
            self._is_held = False
            self._lock.release()
