"""Starts a worker and loads a model into it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from paddock.errors import IllegalInstruction
from paddock.fleet.catalogue.cache_folder import create_cache_folder
from paddock.fleet.lifecycle.model_state import ModelState
from paddock.fleet.lifecycle.spare import Spare
from paddock.fleet.memory.accounts import Accounts, sizes_for_log
from paddock.fleet.memory.fit import Room
from paddock.fleet.memory.offload import fit_model
from paddock.fleet.process.library_trial import LibraryProof
from paddock.fleet.process.rpc import find_rpc_servers
from paddock.fleet.process.worker import WorkerProcess
from paddock.types import EngineOptions

_CHOSEN = ("n_gpu_layers", "n_gpu_layers_draft", "tensor_overrides", "n_ctx")

_log = structlog.get_logger(__name__)


class Starter:
    def __init__(
        self,
        spare: Spare,
        accounts: Accounts,
        cache_share: Callable[[ModelState], int],
        room_for: Callable[[ModelState], Room],
    ) -> None:
        """For a model that is about to load, `cache_share` returns the host memory for its prefix cache, and `room_for`
        the memory that it may take.
        """
        self._spare = spare
        self._accounts = accounts
        self._cache_share = cache_share
        self._room_for = room_for
        self._repack = True
        self._library = LibraryProof()

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
        if not model.is_fake:
            await self._library.require()
        options = await asyncio.to_thread(model.completed, model.options)
        options = msgspec.structs.replace(options, repack=self._repack and options.repack)
        if model.freedom.is_any and not model.is_fake:
            options = await self._fitted(state, options)
        if options.rpc:
            servers = await asyncio.to_thread(find_rpc_servers, options.rpc)
            options = msgspec.structs.replace(options, rpc=servers)
        if options.cache_disk and (problem := await asyncio.to_thread(create_cache_folder, Path(options.cache_disk))):
            _log.warning("no prefixes are kept on disk", model=model.name, reason=problem)
            options = msgspec.structs.replace(options, cache_disk="")
        state.options = options
        state.cache_limit = 0 if options.pooling is not None else options.cache_ram_bytes
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

    async def _fitted(self, state: ModelState, options: EngineOptions) -> EngineOptions:
        """The options with which the model fits the memory that is free now."""
        model = state.model
        await self._accounts.refresh()
        room = self._room_for(state)
        found = await asyncio.to_thread(fit_model, model, room)
        chosen = {name: getattr(found.options, name) for name in _CHOSEN}
        options = msgspec.structs.replace(options, **chosen)
        needs = {"host": found.needs.host.total + found.needs.process}
        if room.device is not None:
            needs["gpu"] = found.needs.device.total
        state.granted = needs
        if any(getattr(model.options, name) != value for name, value in chosen.items()) or not found.is_within:
            (_log.info if found.is_within else _log.warning)(
                "fitted to the free memory" if found.is_within else "the model may not fit the free memory",
                model=model.name,
                n_gpu_layers=options.n_gpu_layers,
                host_experts=found.host_experts,
                n_ctx=options.n_ctx,
                **({} if options.model_draft == "" else {"n_gpu_layers_draft": options.n_gpu_layers_draft}),
                **sizes_for_log(free=_sizes(room), needs=needs),
            )
        return options


def _sizes(room: Room) -> dict[str, int]:
    sizes = {"host": room.host, "gpu": room.device}
    return {device: size for device, size in sizes.items() if size is not None}
