"""A worker process started in advance: starting one takes as long as loading a small model."""

from __future__ import annotations

import asyncio
from typing import IO

from paddock.errors import ModelLoadFailed
from paddock.fleet.process.environment import environment
from paddock.fleet.process.worker import Owner, WorkerProcess
from paddock.types import EngineOptions

_GRACE = 0.5
"""Seconds after a load before the spare starts, so that it does not slow the first requests."""


class Spare:
    """Holds at most one worker."""

    def __init__(self, cpu_lock_file: IO[bytes], owner: Owner) -> None:
        self._cpu_lock_file = cpu_lock_file
        self._owner = owner
        self._worker: WorkerProcess | None = None
        self._environment: dict[str, str] = {}
        self._preparing: asyncio.Task[None] | None = None

    def prepare(self, options: EngineOptions, *, at_once: bool = False) -> None:
        """Start one in the background, if there is none."""
        if self._preparing is None and (self._worker is None or not self._worker.alive):
            grace = 0.0 if at_once else _GRACE
            self._preparing = asyncio.get_running_loop().create_task(self._prepare(options, grace))

    def take(self, options: EngineOptions) -> WorkerProcess:
        """The spare worker, if its environment suits these options; else a new one that is not started yet."""
        worker = self._worker
        if worker is None or not worker.alive or self._environment != environment(options):
            return WorkerProcess(self._cpu_lock_file, self._owner)
        self._worker = None
        return worker

    async def close(self) -> None:
        if self._preparing is not None:
            self._preparing.cancel()
            await asyncio.gather(self._preparing, return_exceptions=True)
        if self._worker is not None:
            await self._worker.stop()

    async def _prepare(self, options: EngineOptions, grace: float) -> None:
        try:
            await asyncio.sleep(grace)
            worker = self._worker = WorkerProcess(self._cpu_lock_file, self._owner)
            self._environment = environment(options)
            await worker.spawn(options, ahead=True)
        except ModelLoadFailed:
            self._worker = None  # the next load reports why
        finally:
            self._preparing = None
