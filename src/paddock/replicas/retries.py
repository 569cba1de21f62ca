"""Whether a request that failed before anything of it was sent is worth another attempt."""

from __future__ import annotations

from paddock.errors import (
    PaddockError,
    QueueFull,
    RateLimitExceeded,
    ReplicaLost,
    ServerStopping,
    Unavailable,
    WorkerCrashed,
)

# What another replica may do better. All else is about the request, and would be the same anywhere.
_ELSEWHERE = (Unavailable, QueueFull, RateLimitExceeded)


# How often a request that generates text may be restarted after a crash. It is given up sooner where it is to blame.
MOST_RESTARTS = 5


class Retries:
    """Of one request."""

    def __init__(self, most: int, restarts: int = 1) -> None:
        """`most` are the attempts that it may take in all, but for `restarts` after a worker of ours crashed."""
        self._left = most
        self._restarts = restarts
        self._lost = 0
        self._replica = ""

    @property
    def only(self) -> str:
        """The one replica that the request may be sent to; empty: any.

        A request that was on a worker of ours when it crashed may be the cause. It is tried again only where that
        worker was, so that it can never end more than one replica.
        """
        return self._replica

    def allow(self, error: PaddockError, replica: str = "") -> bool:
        """Whether there is another attempt after this failure of this replica."""
        if not isinstance(error, _ELSEWHERE) or isinstance(error, ServerStopping):
            return False
        if isinstance(error, WorkerCrashed) and not isinstance(error, ReplicaLost):
            self._restarts -= 1
            self._replica = replica
            return self._restarts >= 0
        if self._replica:
            return False
        self._left -= 1
        self._lost += isinstance(error, ReplicaLost)
        # A request over which two servers elsewhere broke off may be the end of all the others.
        return self._left > 0 and self._lost <= 1
