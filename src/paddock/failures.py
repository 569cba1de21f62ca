"""Leaving alone what keeps failing, for longer each time. No clock: the time is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Failures:
    """Recent failures of one thing, and how long it is left alone after them.

    The first is forgiven. After each further one without a success in between the pause doubles.
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
        """Seconds for which it is left alone yet."""
        return max(0.0, self.until - now)
