"""Decides whether a request that failed before its first delta is retried."""

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

# Another replica may succeed. All other errors are about the request itself.
_RETRYABLE = (Unavailable, QueueFull, RateLimitExceeded)

MOST_RESTARTS = 5
"""How often a generation may be restarted after worker crashes. It ends sooner if it is the cause."""


class Retries:
    """The retries of one request."""

    def __init__(self, most: int, restarts: int = 1) -> None:
        """`most` attempts in all, plus `restarts` after crashes of a local worker."""
        self._left = most
        self._restarts = restarts
        self._lost = 0
        self._replica = ""

    @property
    def only(self) -> str:
        """The one replica that the request may be sent to; empty: any.

        A request may be the cause of a crash. It is retried only on the replica that crashed, so that it cannot crash
        the others.
        """
        return self._replica

    def allow(self, error: PaddockError, replica: str = "") -> bool:
        """Whether to retry after this failure of this replica."""
        if not isinstance(error, _RETRYABLE) or isinstance(error, ServerStopping):
            return False
        if isinstance(error, WorkerCrashed) and not isinstance(error, ReplicaLost):
            self._restarts -= 1
            self._replica = replica
            return self._restarts >= 0
        if self._replica:
            return False
        self._left -= 1
        self._lost += isinstance(error, ReplicaLost)
        # A request that ended two remote servers may end the others too.
        return self._left > 0 and self._lost <= 1
