"""Getting a worker with a model in it, whatever it takes on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import IO

import msgspec
import structlog

from paddock.errors import IllegalInstruction
from paddock.fleet.lifecycle.model_state import Seat
from paddock.fleet.lifecycle.spare import Spare
from paddock.fleet.memory.accounts import Accounts, gib
from paddock.fleet.memory.offload import fitting_layers
from paddock.fleet.process.worker import Owner, WorkerProcess

_log = structlog.get_logger(__name__)


class Starter:
    def __init__(self, turns: IO[bytes], owner: Owner, accounts: Accounts, grant: Callable[[Seat], int]) -> None:
        """`grant` says how much host memory the prefixes of a model that is about to be loaded may take."""
        self._grant = grant
        self._turns = turns
        self._owner = owner
        self._accounts = accounts
        self._spare = Spare(turns, owner)
        self._repack = True

    async def start(self, seat: Seat) -> WorkerProcess:
        """Its worker, with the model loaded. Raises `ModelLoadFailed` and leaves nothing behind."""
        try:
            return await self._spawn(seat)
        except IllegalInstruction:
            # Seen with GCC before 12.4 on CPUs with AMX. Slower without, but it answers; later loads know at once.
            _log.warning(
                "this build's fastest kernels crash on this machine: going on without them", model=seat.model.name
            )
            self._repack = False
            return await self._spawn(seat)

    async def _spawn(self, seat: Seat) -> WorkerProcess:
        model = seat.model
        pooling = await asyncio.to_thread(model.pooling)
        options = msgspec.structs.replace(model.options, pooling=pooling, repack=self._repack)
        if model.auto_layers:
            free = (await self._accounts.look()).get("gpu", 0)
            layers = await asyncio.to_thread(fitting_layers, model, free)
            _log.info("layers that fit the GPU", model=model.name, layers=layers, free=gib(free))
            options = msgspec.structs.replace(options, n_gpu_layers=layers)
            if (found := await asyncio.to_thread(model.estimate, gpu=True, layers=layers)) is not None:
                seat.granted = {"gpu": found.device.total}
        seat.cache_limit = 0 if pooling is not None else options.cache_ram_bytes
        options = msgspec.structs.replace(options, cache_ram_bytes=self._grant(seat))
        worker = seat.worker = self._spare.take(options) or WorkerProcess(self._turns, self._owner)
        try:
            if worker.pid is None:
                await worker.spawn(options)
            await worker.load(model, options)
        except BaseException:
            await worker.stop()
            raise
        self._accounts.changed()
        return worker

    def prepare(self, seat: Seat, *, at_once: bool = False) -> None:
        """Keep a process ready for a load like this one's."""
        if not seat.model.is_fake:
            self._spare.prepare(seat.model.options, at_once=at_once)

    async def close(self) -> None:
        await self._spare.close()
