"""Copies of keys and values on several threads. One core copies far more slowly than a GPU reads and writes: on an H200
12 ms for 47 MB, of which libllama takes 1.4 ms (docs/lab.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from paddock.control_groups import usable_cpus

_MOST_THREADS = 8
# Fewer bytes are copied before other threads have begun.
_LEAST = 2 << 20


class CopyThreads:
    """Used by one thread. With a single thread in all, the caller makes every copy."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._others = ThreadPoolExecutor(threads - 1, "copy") if threads > 1 else None

    @classmethod
    def for_gpu(cls) -> CopyThreads:
        """As many as leave half of the CPUs to others. They only run while the GPU waits for the engine."""
        return cls(max(min(usable_cpus() // 2, _MOST_THREADS), 1))

    def run(self, copies: Sequence[Callable[[], object]], size: int) -> None:
        """Make these copies, of `size` bytes in all. None may write what another one reads or writes."""
        if self._others is None or size < _LEAST:
            _run(copies)
            return
        first, *others = [copies[begin :: self._threads] for begin in range(self._threads)]
        running: list[Future[None]] = []
        try:
            for part in filter(None, others):
                running.append(self._others.submit(_run, part))
            _run(first)
        finally:
            wait(running)  # they use memory that the caller may free
        for future in running:
            future.result()


def _run(copies: Sequence[Callable[[], object]]) -> None:
    for copy in copies:
        copy()
