"""Starts a worker and loads a model into it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from paddock.errors import IllegalInstruction
from paddock.fleet.lifecycle.model_state import ModelState
from paddock.fleet.lifecycle.spare import Spare
from paddock.fleet.memory.accounts import Accounts, gib
from paddock.fleet.memory.offload import fitting_layers
from paddock.fleet.process.worker import WorkerProcess

_log = structlog.get_logger(__name__)


class Starter:
    def __init__(self, spare: Spare, accounts: Accounts, cache_share: Callable[[ModelState], int]) -> None:
        """`cache_share` returns the host memory for the prefix cache of a model that is about to load."""
        self._spare = spare
        self._accounts = accounts
        self._cache_share = cache_share
        self._repack = True

    async def start(self, state: ModelState) -> WorkerProcess:
        """A worker with the model loaded. Raises `ModelLoadFailed` after cleaning up."""
        try:
            return await self._spawn(state)
        except IllegalInstruction:
            # Seen with GCC before 12.4 on CPUs with AMX. Slower without repacked weights, but it works.
            _log.warning(
                "the fastest kernels of this build crash on this CPU: retrying without repacked weights",
                model=state.model.name,
            )
            self._repack = False
            return await self._spawn(state)

    async def _spawn(self, state: ModelState) -> WorkerProcess:
        model = state.model
        pooling = await asyncio.to_thread(model.pooling)
        options = msgspec.structs.replace(model.options, pooling=pooling, repack=self._repack and model.options.repack)
        if model.auto_layers:
            free = (await self._accounts.refresh()).get("gpu", 0)
            layers = await asyncio.to_thread(fitting_layers, model, free)
            _log.info("layers that fit the GPU", model=model.name, layers=layers, free=gib(free))
            options = msgspec.structs.replace(options, n_gpu_layers=layers)
            if (found := await asyncio.to_thread(model.estimate, gpu=True, layers=layers)) is not None:
                state.granted = {"gpu": found.device.total}
        state.cache_limit = 0 if pooling is not None else options.cache_ram_bytes
        options = msgspec.structs.replace(options, cache_ram_bytes=self._cache_share(state))
        worker = state.worker = self._spare.take(options)
        try:
            if worker.pid is None:
                await worker.spawn(options)
            await worker.load(model, options)
        except BaseException:
            await worker.stop()
            raise
        self._accounts.changed()
        return worker
