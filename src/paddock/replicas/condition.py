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
    """Requests that failed because of the server."""

    def checked(self, status: int) -> None:
        """Record a health check's HTTP status; 0: no answer. An answered request counts as a passed check."""
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

    def unreachable(self) -> None:
        """Record a refused connection: it is down at once."""
        self.health = "down"
