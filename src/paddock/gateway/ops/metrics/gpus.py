"""GPU metrics, sampled by scrapes. A driver that hangs delays one scrape and nothing else."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

import structlog

from paddock.gateway.ops.metrics.nvml import Gpu, Nvml, NvmlError

_log = structlog.get_logger(__name__)
_SAMPLE_SECONDS = 1.0
"""Seconds for which a sample is reused."""
_PATIENCE = 2.0
"""Seconds that a scrape waits for a sample."""
_RETRY = 60.0
"""Seconds until a library that is missing or failed is tried again."""


class Reader(Protocol):
    def read(self) -> Sequence[Gpu]:
        """Raises NvmlError."""
        ...


class Gpus:
    """Used on the event loop; one thread at a time calls the driver."""

    def __init__(self, open_reader: Callable[[], Reader] = Nvml, patience: float = _PATIENCE) -> None:
        self._open, self._patience = open_reader, patience
        self._reader: Reader | None = None
        self._sample: Sequence[Gpu] = ()
        self._until = float("-inf")
        """When another sample is due, by the monotonic clock."""
        self._pending: asyncio.Future[None] | None = None
        self._called = 0.0
        """When the driver was called last."""

    async def sample(self) -> Sequence[Gpu]:
        """The GPUs, at most a second old. Empty without NVML, or if it does not answer in time."""
        if time.monotonic() < self._until:
            return self._sample
        if self._pending is None or self._pending.done():
            read: Future[None] = Future()
            self._pending, self._called = asyncio.wrap_future(read), time.monotonic()
            # A daemon thread: a call that hangs in the driver must not keep the server alive.
            threading.Thread(target=self._read, args=(read,), name="nvml", daemon=True).start()
        # Counted from the call: while the driver hangs, later scrapes do not wait.
        left = max(0.0, self._called + self._patience - time.monotonic())
        done, _ = await asyncio.wait([self._pending], timeout=left)
        return self._sample if done else ()

    def _read(self, done: Future[None]) -> None:
        try:
            if self._reader is None:
                self._reader = self._open()
            self._sample, self._until = self._reader.read(), time.monotonic() + _SAMPLE_SECONDS
        except NvmlError as error:
            _log.debug("cannot query GPUs", error=str(error))
            self._reader, self._sample, self._until = None, (), time.monotonic() + _RETRY
        done.set_result(None)
