"""Detects a worker that hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

_USUAL_INTERVAL = 1.0
_LEAST_CHECKS = 4


@dataclass(slots=True)
class Watchdog:
    """Judges a worker by its messages. Pure: `check` is called once per interval.

    Active from the first request until the worker is idle again: a worker that hangs may hold the CPU lock even after
    its clients have left.
    """

    silence_timeout: float = 30.0
    """Seconds without any message after which the process counts as hung."""
    hang_timeout: float = 600.0
    """Seconds that one step of the engine may take."""
    _silent: float = 0.0
    _in_step: float = 0.0
    _pinged_idle: bool = False
    is_idle: bool = False
    """It was pinged without work, got no work since, and reported that its engine waits."""

    @property
    def interval(self) -> float:
        """Seconds between two checks."""
        return min(_USUAL_INTERVAL, self.silence_timeout / _LEAST_CHECKS)

    def start(self) -> None:
        self._silent = self._in_step = 0.0

    def work_added(self) -> None:
        self._pinged_idle = self.is_idle = False

    def pinged(self, *, idle: bool) -> None:
        """The worker was pinged; `idle`: it had no work then."""
        self._pinged_idle, self.is_idle = idle, False

    def message_received(self) -> None:
        self._silent = 0.0

    def step_reported(self, seconds: float) -> None:
        """The worker reported how long its engine has been in the current step; 0: it waits."""
        self._in_step = seconds
        self.is_idle = self._pinged_idle and seconds == 0

    def check(self) -> str:
        """Another interval has passed: why the worker hangs, or an empty string.

        Counts intervals instead of seconds, so that a blocked event loop in this process does not count as silence.
        """
        self._silent += self.interval
        if self._silent >= self.silence_timeout:
            return f"no message for {self.silence_timeout:g} s (silence_timeout)"
        if self._in_step >= self.hang_timeout:
            return f"its engine did not finish a step within {self.hang_timeout:g} s (hang_timeout)"
        return ""


class HealthCheck:
    """Pings a worker while it has work, and reports a hang once."""

    def __init__(self, ping: Callable[[], None], has_work: Callable[[], bool], on_hang: Callable[[str], None]) -> None:
        self.watchdog = Watchdog()
        self._ping = ping
        self._has_work = has_work
        self._on_hang = on_hang
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def start(self) -> None:
        """Called with each new piece of work."""
        self.watchdog.work_added()
        if self._timer is None and not self._stopped:
            self.watchdog.start()
            self._schedule()

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        self.watchdog.pinged(idle=not self._has_work())
        self._ping()
        self._timer = asyncio.get_running_loop().call_later(self.watchdog.interval, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._stopped or self.watchdog.is_idle:
            return
        if reason := self.watchdog.check():
            self._on_hang(reason)
        else:
            self._schedule()
