"""How a server elsewhere is, from what it says of itself and from what became of requests. No clock: time is told."""

from __future__ import annotations

from dataclasses import dataclass, field

from paddock.failures import Failures
from paddock.replicas.replica import Health

_PATIENCE = 2
"""Looks in a row without an answer before it counts as gone: the first may have been unlucky."""


@dataclass(slots=True)
class Condition:
    health: Health = "unready"
    """Until somebody has looked."""
    missed: int = 0
    """Looks in a row that were not answered."""
    life: int = 0
    """How often it has come back."""
    failures: Failures = field(default_factory=Failures)

    def heard(self, status: int) -> None:
        """It answered a look with this status; 0: it did not answer."""
        if status in (200, 503):
            self.missed = 0
            if self.health == "down":
                self.life += 1
                self.failures.succeeded()
            self.health = "ready" if status == 200 else "unready"
            return
        self.missed += 1
        if self.missed >= _PATIENCE:
            self.health = "down"

    def answered(self) -> None:
        """A request was, which is the best sign of all, and may come before the next look."""
        self.heard(200)

    def gone(self) -> None:
        """A request found nobody there, which need not be confirmed."""
        self.health = "down"

    def failed(self, reason: str, now: float) -> None:
        """A request came to nothing through its fault."""
        self.failures.failed(reason, now)

    def succeeded(self) -> None:
        self.failures.succeeded()

    def left_alone(self, now: float) -> bool:
        """Whether it has failed again and again. When the pause is over the next request finds out whether it still
        does; should it, it is sent elsewhere.
        """
        return self.failures.pause(now) > 0
