"""Whether a worker that has something to do still lives, judged by what is heard of it. No clock: time is told."""

from __future__ import annotations

from dataclasses import dataclass

_USUAL_INTERVAL = 1.0
_LEAST_LOOKS = 4


@dataclass(slots=True)
class Vigil:
    """Begun when a worker is given something to do, and kept until it is at rest: one that hangs may still hold what
    others wait for, such as its turn on the CPU, when its own clients have long left.
    """

    silence_timeout: float = 30.0
    """Seconds without any sign of life after which a process must be stopped or stuck."""
    hang_timeout: float = 600.0
    """Seconds that a single step of the engine may take."""
    _silent: float = 0.0
    _in_step: float = 0.0
    _asked_idle: bool = False
    at_rest: bool = False
    """It was asked when it had nothing to do, has got nothing since, and said that its engine waits."""

    @property
    def interval(self) -> float:
        """Seconds between two looks."""
        return min(_USUAL_INTERVAL, self.silence_timeout / _LEAST_LOOKS)

    def begin(self) -> None:
        self._silent = self._in_step = 0.0

    def given_work(self) -> None:
        self._asked_idle = self.at_rest = False

    def asked(self, *, idle: bool) -> None:
        """It is asked for a sign of life, at a time when it has something to do or not."""
        self._asked_idle, self.at_rest = idle, False

    def heard(self) -> None:
        """Something came from the worker, whatever it was."""
        self._silent = 0.0

    def told(self, in_step: float) -> None:
        """It says for how long its engine has been in the same step."""
        self._in_step = in_step
        self.at_rest = self._asked_idle and in_step == 0

    def look(self) -> str:
        """Another interval has passed: why the worker must be taken to hang, or nothing.

        Looks are counted instead of seconds, so that time in which nobody here could listen is not held against it.
        """
        self._silent += self.interval
        if self._silent >= self.silence_timeout:
            return f"nothing was heard of it for {self.silence_timeout:g} s (silence_timeout)"
        if self._in_step >= self.hang_timeout:
            return f"its engine did not finish a step within {self.hang_timeout:g} s (hang_timeout)"
        return ""
