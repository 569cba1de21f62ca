"""A lock on the CPU cores, shared by all workers.

ggml's threads wait for each other by spinning. Two models that compute on the same cores at the same time are many
times slower than two that alternate step by step.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_QUEUE = 0


class CpuLock:
    """Locks bytes of a file that all workers have open: one for each CPU. The kernel releases them when a process ends.

    As many workers compute at the same time as the CPUs can hold. A worker that wants to compute first locks the
    queue byte, so a worker that has just finished cannot overtake one that waits.
    """

    def __init__(self, fd: int, *, threads: int, cpus: Sequence[int]) -> None:
        """`cpus` are those that the worker may use."""
        self._fd = fd
        starts = range(0, len(cpus) - threads + 1, threads)
        self._places = [cpus[start : start + threads] for start in starts] or [cpus]

    @contextmanager
    def hold(self) -> Iterator[None]:
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, _QUEUE)
        place = self._acquire()
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _QUEUE)
        try:
            yield
        finally:
            for cpu in place:
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _byte(cpu))

    def _acquire(self) -> Sequence[int]:
        """The first place whose CPUs are free; if there is none, wait for one."""
        for place in self._places:
            if self._try(place):
                return place
        place = self._places[os.getpid() % len(self._places)]
        for cpu in place:
            fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, _byte(cpu))
        return place

    def _try(self, place: Sequence[int]) -> bool:
        locked: list[int] = []
        for cpu in place:
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _byte(cpu))
            except OSError:
                for other in locked:
                    fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _byte(other))
                return False
            locked.append(cpu)
        return True


def _byte(cpu: int) -> int:
    return cpu + 1
