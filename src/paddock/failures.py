"""Exponential backoff after failures. Pure: the caller passes the time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Failures:
    """Consecutive failures, and the pause before the next attempt.

    The first failure causes no pause. Each further one without a success in between doubles the pause.
    """

    count: int = 0
    until: float = 0.0
    reason: str = ""
    first_pause: float = 1.0
    longest_pause: float = 60.0

    def failed(self, reason: str, now: float) -> None:
        self.count += 1
        self.reason = reason
        if self.count > 1:
            self.until = now + min(self.longest_pause, self.first_pause * 2 ** (self.count - 2))

    def succeeded(self) -> None:
        self.count, self.until, self.reason = 0, 0.0, ""

    def pause(self, now: float) -> float:
        """Seconds until the next attempt is allowed."""
        return max(0.0, self.until - now)
