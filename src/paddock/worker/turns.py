"""Taking turns on the CPU. ggml's threads wait for each other by spinning, so two models that compute at the same
moment on the same cores bring each other nearly to a halt; one after the other, step by step, both run at full speed.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

_DOOR = 0


class Turns:
    """Locks on a file that all workers have open. The kernel drops them with the process, however it ends.

    As many may compute at once as fit the cores side by side. Whoever wants a turn first stands in the door, so one
    that has just finished cannot push in before the one that waits.
    """

    def __init__(self, fd: int, *, threads: int, cores: int) -> None:
        self._fd = fd
        self._places = range(1, max(1, cores // threads) + 1)

    @contextmanager
    def take(self) -> Iterator[None]:
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, _DOOR)
        place = self._enter()
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _DOOR)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, place)

    def _enter(self) -> int:
        for place in self._places:
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            except OSError:
                continue
            return place
        place = self._places[os.getpid() % len(self._places)]
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, place)
        return place
