"""A lock on the CPU cores, shared by all workers.

ggml's threads wait for each other by spinning. Two models that compute on the same cores at the same time are many
times slower than two that alternate step by step.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

_QUEUE = 0


class CpuLock:
    """Locks byte ranges of a file that all workers have open. The kernel releases them when a process ends.

    As many workers compute at the same time as the cores can hold. A worker that wants to compute first locks the
    queue byte, so a worker that has just finished cannot overtake one that waits.
    """

    def __init__(self, fd: int, *, threads: int, cores: int) -> None:
        self._fd = fd
        self._places = range(1, max(1, cores // threads) + 1)

    @contextmanager
    def hold(self) -> Iterator[None]:
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, _QUEUE)
        place = self._acquire()
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _QUEUE)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, place)

    def _acquire(self) -> int:
        for place in self._places:
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            except OSError:
                continue
            return place
        place = self._places[os.getpid() % len(self._places)]
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, place)
        return place
