"""A worker that has been started before anybody needs it, since that takes as long as loading a small model."""

from __future__ import annotations

import asyncio
from typing import IO

from paddock.errors import ModelLoadFailed
from paddock.fleet.process.environment import environment
from paddock.fleet.process.worker import Owner, WorkerProcess
from paddock.types import EngineOptions

_GRACE = 0.5
"""Seconds after a load before the next one is prepared for: the model that came has something to do first."""


class Spare:
    """Holds one such worker, or none."""

    def __init__(self, turns: IO[bytes], owner: Owner) -> None:
        self._turns = turns
        self._owner = owner
        self._worker: WorkerProcess | None = None
        self._environment: dict[str, str] = {}
        self._preparing: asyncio.Task[None] | None = None

    def prepare(self, options: EngineOptions, *, at_once: bool = False) -> None:
        """See to it that there will be one for a load with such options."""
        if self._preparing is None and (self._worker is None or not self._worker.alive):
            grace = 0.0 if at_once else _GRACE
            self._preparing = asyncio.get_running_loop().create_task(self._prepare(options, grace))

    def take(self, options: EngineOptions) -> WorkerProcess | None:
        """The one there is, if it suits these options."""
        worker = self._worker
        if worker is None or not worker.alive or self._environment != environment(options):
            return None
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
            worker = self._worker = WorkerProcess(self._turns, self._owner)
            self._environment = environment(options)
            await worker.spawn(options, ahead=True)
        except ModelLoadFailed:
            self._worker = None  # the load that would have used it will say why
        finally:
            self._preparing = None
