"""The health of a remote server, from health checks and request outcomes. Pure: `now` is passed in."""

from __future__ import annotations

from dataclasses import dataclass, field

from paddock.failures import Failures
from paddock.replicas.replica import Health

_MOST_MISSED = 2
"""Unanswered health checks in a row after which it is down."""


@dataclass(slots=True)
class Condition:
    health: Health = "unready"
    """`unready` until the first health check."""
    missed: int = 0
    """Unanswered health checks in a row."""
    epoch: int = 0
    """How often it has recovered."""
    failures: Failures = field(default_factory=Failures)

    def checked(self, status: int) -> None:
        """Record a health check's HTTP status; 0: no answer."""
        if status in (200, 503):
            self.missed = 0
            if self.health == "down":
                self.epoch += 1
                self.failures.succeeded()
            self.health = "ready" if status == 200 else "unready"
            return
        self.missed += 1
        if self.missed >= _MOST_MISSED:
            self.health = "down"

    def answered(self) -> None:
        """Record that it answered a request, which counts as a passed health check."""
        self.checked(200)

    def unreachable(self) -> None:
        """Record a refused connection: it is down at once."""
        self.health = "down"

    def failed(self, reason: str, now: float) -> None:
        """Record a request that failed because of the server."""
        self.failures.failed(reason, now)

    def succeeded(self) -> None:
        self.failures.succeeded()

    def in_backoff(self, now: float) -> bool:
        """Whether it gets no requests after repeated failures."""
        return self.failures.pause(now) > 0
