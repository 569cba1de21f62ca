"""Whether a request that failed before anybody was told is worth another attempt."""

from __future__ import annotations

from paddock.errors import PaddockError, QueueFull, RateLimitExceeded, ServerStopping, Unavailable, WorkerCrashed

# What another replica may do better. All else is about the request, and would be the same anywhere.
_ELSEWHERE = (Unavailable, QueueFull, RateLimitExceeded)


class Retries:
    """Of one request."""

    def __init__(self, most: int) -> None:
        """`most` are the attempts that it may take in all."""
        self._left = most
        self._crashes = 0

    def allow(self, error: PaddockError) -> bool:
        """Whether there is another one after this failure."""
        if not isinstance(error, _ELSEWHERE) or isinstance(error, ServerStopping):
            return False
        self._left -= 1
        # A request over which two have died would be the death of all the others.
        self._crashes += isinstance(error, WorkerCrashed)
        return self._left > 0 and self._crashes <= 1
