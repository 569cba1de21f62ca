"""When not to try again what failed."""

from __future__ import annotations


class Pause:
    """An attempt that fails costs more than one that succeeds saves. So after a failure there are none for a while, and
    after the next one for twice as long.
    """

    _SHORTEST, _LONGEST = 64, 1 << 14

    def __init__(self) -> None:
        self._left = 0
        self._length = self._SHORTEST
        self._good = 0

    def has_ended(self) -> bool:
        """Asked once for each step that could be one."""
        self._left = max(self._left - 1, 0)
        return self._left == 0

    def fail(self) -> None:
        self._left, self._length, self._good = self._length, min(2 * self._length, self._LONGEST), 0

    def succeed(self) -> None:
        self._good += 1
        if self._good > self._length:
            self._length = self._SHORTEST
