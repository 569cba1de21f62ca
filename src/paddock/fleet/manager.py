"""The one writer of lifecycle state. Callers ask for a generation; whether a model must load is decided here."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import structlog

from paddock.errors import (
    IllegalInstruction,
    InvalidRequest,
    ModelLoadFailed,
    NotSupported,
    PaddockError,
    ServerStopping,
)
from paddock.fleet.adapters import acting, acting_at_first
from paddock.fleet.catalogue import Catalogue, Model
from paddock.fleet.kinds import kind_of
from paddock.fleet.memory import Machine
from paddock.fleet.offload import fitting_layers
from paddock.fleet.process import Generation, WorkerProcess
from paddock.fleet.vigil import Vigil
from paddock.types import Adapters, GenerateRequest, ModelInfo, ModelKind, Pooling, PoolRequest, SlotState
from paddock.wire import Pooled, SlotAction, SlotDone, Text, TextQuestion, Tokens

_log = structlog.get_logger(__name__)

State = Literal["unloaded", "loading", "loaded"]


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """What a look at a model shows. Looking changes nothing."""

    model: Model
    state: State
    running: int = 0
    slots: int = 0
    pid: int | None = None


class Fleet:
    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self._repack = True
        self._workers: dict[str, WorkerProcess] = {}
        self._loading: dict[str, asyncio.Task[WorkerProcess]] = {}
        self._starting: dict[str, WorkerProcess] = {}
        self._adapters: dict[str, Adapters] = {}
        # The workers lock parts of this file to take turns on the CPU.
        self._turns = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._stopping = False
        self.started = time.monotonic()

    def status(self) -> list[ModelStatus]:
        return [self._status(model) for model in self.catalogue]

    async def generate(self, model: Model, request: Callable[[int], GenerateRequest]) -> Generation:
        """Have the model loaded if need be, and the request accepted by its worker."""
        usual = self.adapters(model)
        if (kind := kind_of(await self.pooling(model))) != "generation":
            raise InvalidRequest(f"{model.name} is served for {kind}: it does not generate text", param="model")
        worker = await self._ready(model)

        def with_adapters(id: int) -> GenerateRequest:
            message = request(id)
            listed = message.adapters
            adapters = usual if listed is None else acting(model.adapters, listed, param="lora")
            return msgspec.structs.replace(message, adapters=adapters)

        generation = worker.generate(with_adapters)
        try:
            await generation.accepted()
        except BaseException:
            generation.close()
            raise
        return generation

    def progress(self, model: Model) -> str:
        """How far a model is that is waited for, in a few words."""
        worker = self._starting.get(model.name)
        return f"loading {model.name}" + (f" {worker.progress:.0%}" if worker is not None and worker.progress else "")

    async def pool(self, model: Model, kind: ModelKind, request: Callable[[int], PoolRequest]) -> Pooled:
        """Have vectors made, or scores given, by a model of that kind. Who stops waiting is not computed for."""
        if (served := kind_of(await self.pooling(model))) != kind:
            raise NotSupported(
                f"{model.name} is served for {served}; for {kind} start the server with a model made for it, "
                f"or with --{kind}",
                param="model",
            )
        worker = await self._ready(model)
        return await worker.pool(request)

    async def pooling(self, model: Model) -> Pooling | None:
        """How the model makes vectors; None if it generates text. Reads its file's header at most."""
        worker = self._workers.get(model.name)
        if worker is not None and worker.info is not None:
            return worker.info.pooling
        return await asyncio.to_thread(model.pooling)

    async def kind(self, model: Model) -> ModelKind | None:
        """What the model is served for; None if it cannot be served as the operator wants. Wakes nothing."""
        return await asyncio.to_thread(model.kind)

    async def slots(self, model: Model) -> list[SlotState]:
        """The running places of a loaded model; none while it is not loaded. Wakes nothing."""
        worker = self._workers.get(model.name)
        return [] if worker is None or not worker.alive else await worker.slots()

    async def act_on_slot(self, model: Model, action: Callable[[int], SlotAction]) -> SlotDone:
        """Save, restore or erase what a slot remembers, as soon as the slot is free."""
        if (kind := kind_of(await self.pooling(model))) != "generation":
            raise NotSupported(f"{model.name} is served for {kind}: its slot remembers nothing", param="model")
        worker = await self._ready(model)
        return await worker.act(action)

    async def ask(self, model: Model, question: Callable[[int], TextQuestion]) -> Tokens | Text:
        """What only a model's vocabulary or template can tell; it is loaded if need be."""
        worker = await self._ready(model)
        return await worker.ask(question)

    def adapters(self, model: Model) -> Adapters:
        """Those that act on requests which do not say so themselves, whether the model is loaded or not."""
        chosen = self._adapters.get(model.name)
        return acting_at_first(model.adapters) if chosen is None else chosen

    def set_adapters(self, model: Model, listed: Sequence[tuple[int, float]]) -> None:
        """From now on just these act, for requests that come later. Raises `InvalidRequest`."""
        self._adapters[model.name] = acting(model.adapters, listed, param="")

    def info(self, model: Model) -> ModelInfo | None:
        """What a loaded model says of itself; None while it is not loaded."""
        worker = self._workers.get(model.name)
        return None if worker is None or not worker.alive else worker.info

    async def drain(self, grace: float) -> None:
        """Take nothing new; let what runs finish within `grace` seconds, then end it with an error."""
        self._stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await asyncio.gather(*(worker.idle() for worker in self._workers.values()))
        self.abandon()

    def abandon(self) -> None:
        """End everything that runs or loads, now."""
        self._stopping = True
        for worker in self._workers.values():
            worker.fail_all(ServerStopping("the server is stopping"))
        for task in self._loading.values():
            task.cancel()

    async def close(self) -> None:
        self.abandon()
        await asyncio.gather(*self._loading.values(), return_exceptions=True)
        await asyncio.gather(*(worker.stop() for worker in list(self._workers.values())))
        self._turns.close()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _status(self, model: Model) -> ModelStatus:
        worker = self._workers.get(model.name)
        if worker is None:
            return ModelStatus(model, "loading" if model.name in self._loading else "unloaded")
        slots = worker.info.n_slots if worker.info is not None else 0
        return ModelStatus(model, "loaded", worker.running, slots, worker.pid)

    async def _ready(self, model: Model) -> WorkerProcess:
        """The model's worker, loaded. However many ask at once, one load happens and all wait for it."""
        if self._stopping:
            raise ServerStopping("the server is stopping")
        if (worker := self._workers.get(model.name)) is not None and worker.alive:
            return worker
        task = self._loading.get(model.name)
        if task is None:
            task = self._loading[model.name] = asyncio.get_running_loop().create_task(self._load(model))
            task.add_done_callback(lambda _: self._loading.pop(model.name, None))
        try:
            # Shielded: a client that leaves must not take the load away from the others.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise ServerStopping("the server is stopping") from None
            raise

    async def _load(self, model: Model) -> WorkerProcess:
        problem = await asyncio.to_thread(model.problem)
        if problem is not None:
            raise ModelLoadFailed(f"{model.name} cannot be loaded: {problem}", param="model")
        begun = time.monotonic()
        _log.info("loading", model=model.name)
        try:
            worker = await self._start(model)
        except IllegalInstruction:
            # Seen with GCC before 12.4 on CPUs with AMX. Slower without, but it answers; later loads know at once.
            _log.warning("this build's fastest kernels crash on this machine: going on without them", model=model.name)
            self._repack = False
            worker = await self._start(model)
        self._workers[model.name] = worker
        _log.info("loaded", model=model.name, pid=worker.pid, seconds=round(time.monotonic() - begun, 2))
        return worker

    async def _start(self, model: Model) -> WorkerProcess:
        vigil = Vigil(model.silence_timeout, model.hang_timeout)
        worker = self._starting[model.name] = WorkerProcess(model.name, self._turns, self._on_gone, vigil)
        try:
            options = msgspec.structs.replace(model.options, pooling=await self.pooling(model), repack=self._repack)
            if model.auto_layers:
                free = (await asyncio.to_thread(Machine().available)).get("gpu", 0)
                layers = await asyncio.to_thread(fitting_layers, model, free)
                _log.info("layers that fit the GPU", model=model.name, layers=layers, free=free)
                options = msgspec.structs.replace(options, n_gpu_layers=layers)
            await worker.start(model.path, options, within=model.load_timeout)
        except PaddockError as error:
            _log.error("load failed", model=model.name, error=error.message)
            raise
        finally:
            del self._starting[model.name]
        return worker

    def _on_gone(self, worker: WorkerProcess) -> None:
        if self._workers.get(worker.model) is worker:
            del self._workers[worker.model]
