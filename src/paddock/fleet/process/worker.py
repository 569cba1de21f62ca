"""One worker process as the gateway sees it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import IO, Protocol, cast

import structlog

from paddock.errors import (
    IllegalInstruction,
    ModelLoadFailed,
    OutOfMemory,
    PaddockError,
    Unavailable,
    WorkerCrashed,
)
from paddock.fleet.catalogue.model import Model
from paddock.fleet.process.attempt import Attempt
from paddock.fleet.process.connection import Connection, describe_exit
from paddock.fleet.process.environment import has_gpu
from paddock.fleet.process.requests import Call, Requests
from paddock.fleet.process.watchdog import HealthCheck, Watchdog
from paddock.tally import Levels, Tally
from paddock.types import (
    EngineOptions,
    GenerateRequest,
    ModelInfo,
    PoolRequest,
    ReportView,
    Sandbox,
    SandboxState,
    SlotAction,
    SlotState,
    TenantCache,
    TextQuestion,
    TreeView,
)
from paddock.wire import messages as wire
from paddock.wire.frames import FrameError

_log = structlog.get_logger(__name__)
_SLOTS_TIMEOUT = 10.0
_FLUSH_SECONDS = 10.0
"""For writing prefixes to disk before a worker ends. Most of them are written before, while there is time."""


class Owner(Protocol):
    """Gets the events of a worker."""

    def worker_progressed(self, worker: WorkerProcess) -> None:
        """Its load has progressed."""

    def worker_counted(self, worker: WorkerProcess, tally: Tally) -> None:
        """It reported an increment of its counters."""

    def worker_idle(self, worker: WorkerProcess) -> None:
        """Its last request has ended."""

    def worker_exited(self, worker: WorkerProcess) -> None:
        """The process has ended, and its requests have failed."""


class WorkerProcess:
    """Call `spawn`, then `load`, then send requests. Everything runs on the gateway's event loop."""

    def __init__(self, cpu_lock_file: IO[bytes], owner: Owner) -> None:
        self._owner = owner
        self.model = ""
        self.progress = 0.0
        """Of its load, 0 to 1."""
        self.info: ModelInfo | None = None
        self.sandbox = SandboxState()
        """Known once its model is loaded."""
        self.exit_reason = ""
        """Why it ended unexpectedly; empty if it did not."""
        self.exit_cause = ""
        """The same as a label: a signal's name, `exit`, `protocol` or `hang`."""
        self.levels: Levels | None = None
        """Its gauges, as last reported."""
        self.view: wire.View | None = None
        """Its last view, while it is watched."""
        self.tree: TreeView | None = None
        """Its last prefix tree."""
        self.reports: list[ReportView] = []
        """Its last cache reports, while it is watched."""
        self._watched = False
        self._first_view = asyncio.Event()
        self._connection = Connection(cpu_lock_file, self)
        self.requests = Requests(self._connection.send, lambda: owner.worker_idle(self))
        self._health = HealthCheck(lambda: self._connection.send(wire.Ping()), self._has_work, self._on_hang)
        self._ready: asyncio.Future[ModelInfo] = asyncio.get_running_loop().create_future()
        self._problem: PaddockError | None = None
        self._stopping = False
        self._writes_prefixes = False

    @property
    def pid(self) -> int | None:
        return self._connection.pid

    @property
    def alive(self) -> bool:
        return self._connection.is_open and not self._stopping

    async def spawn(self, options: EngineOptions, *, ahead: bool = False) -> None:
        """Start the process; `ahead`: before its model is known."""
        await self._connection.spawn(options, ahead=ahead)

    async def load(self, model: Model, options: EngineOptions) -> None:
        """Load this model. Raises `ModelLoadFailed`; the worker is unusable then."""
        self.model = self._connection.model = model.name
        self._health.watchdog = Watchdog(model.settings.silence_timeout, model.settings.hang_timeout)
        self._connection.send(wire.Load(wire.PROTOCOL_VERSION, model.path, options, _sandbox(model)))
        self._health.start()
        self._writes_prefixes = bool(options.cache_disk) and options.pooling is None
        timeout = model.settings.load_timeout
        try:
            self.info = await asyncio.wait_for(asyncio.shield(self._ready), timeout)
        except TimeoutError:
            raise ModelLoadFailed(
                f"{self.model} did not load within {timeout:g} s (load_timeout)", retry_after=timeout
            ) from None

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def generate(self, request: GenerateRequest) -> Attempt:
        id = self.requests.next_id()
        attempt = Attempt(lambda: self.requests.abort(id), self.info, request.n, request.adapters)
        if not self.alive:
            attempt.put(self._gone())
            return attempt
        self.requests.add(id, attempt)
        self._health.start()
        self._connection.send(wire.Generate(id, request))
        return attempt

    async def pool(self, request: PoolRequest, on_progress: Callable[[int], None]) -> wire.Pooled:
        """Compute embeddings or scores. `on_progress` gets the number of tokens computed so far."""
        return cast(wire.Pooled, await self._call(wire.Pool(self.requests.next_id(), request), on_progress))

    async def ask(self, question: TextQuestion) -> wire.Tokens | wire.Text:
        return cast(wire.Tokens | wire.Text, await self._call(wire.Ask(self.requests.next_id(), question)))

    async def act_on_slot(self, action: SlotAction) -> wire.SlotDone:
        """Save, restore or erase a slot, once it is free."""
        return cast(wire.SlotDone, await self._call(wire.ActOnSlot(self.requests.next_id(), action)))

    async def slots(self) -> list[SlotState]:
        """The slots between two steps of the engine."""
        return cast(wire.Slots, await self._look(wire.Look(self.requests.next_id()), "slots")).slots

    async def cache_contents(self) -> list[TenantCache]:
        """What is cached for each tenant, between two steps of the engine."""
        answer = await self._look(wire.LookAtCache(self.requests.next_id()), "cache")
        return cast(wire.CacheContents, answer).tenants

    async def clear_cache(self, tenant: str | None) -> list[TenantCache]:
        """Drop what is cached and not in use, of one tenant or of all. Returns what is left."""
        answer = await self._look(wire.ClearCache(self.requests.next_id(), tenant), "cache")
        return cast(wire.CacheContents, answer).tenants

    async def _look(self, message: Call, what: str) -> object:
        try:
            return await asyncio.wait_for(self._call(message), _SLOTS_TIMEOUT)
        except TimeoutError:
            raise Unavailable(
                f"the worker of {self.model} did not return its {what} within {_SLOTS_TIMEOUT:g} s", retry_after=1
            ) from None

    async def _call(self, message: Call, on_progress: Callable[[int], None] | None = None) -> object:
        if not self.alive:
            raise self._gone()
        self._health.start()
        return await self.requests.call(message, on_progress)

    # ── control, which does not count as use ─────────────────────────────────────────────────────────────────────────

    def watch(self, *, on: bool) -> None:
        """Turn its live views on or off."""
        self._watched = on
        self.view = self.tree = None
        self.reports = []
        self._first_view.clear()
        self._connection.send(wire.Watch(on))

    async def wait_first_view(self) -> None:
        await self._first_view.wait()

    def limit_cache(self, ram_bytes: int) -> None:
        """Limit the host memory of its prefix cache."""
        self._connection.send(wire.LimitCache(ram_bytes))

    async def stop(self) -> None:
        """End the process, by force if necessary, and wait for its exit. A model that keeps prefixes on disk first gets
        some time to write them.
        """
        flush = _FLUSH_SECONDS if self._writes_prefixes and self.alive and self.info is not None else 0.0
        self._stopping = True
        self._health.stop()
        self._connection.send(wire.Stop(flush))
        await self._connection.close(flush)

    # ── events of the connection ─────────────────────────────────────────────────────────────────────────────────────

    def on_messages(self, messages: list[wire.ToGateway]) -> None:
        if not messages or not all(isinstance(message, wire.View) for message in messages):
            self._health.watchdog.message_received()  # views come from a thread of their own and prove nothing
        for message in messages:
            self._on_message(message)

    def on_protocol_error(self, error: FrameError) -> None:
        self._problem = WorkerCrashed(f"the worker of {self.model} sent an invalid message: {error}", retry_after=1)
        self.exit_cause = "protocol"
        self._connection.kill()

    async def on_closed(self) -> None:
        self._health.stop()
        status = await self._connection.exit_status()
        error = self._problem or WorkerCrashed(
            f"the worker of {self.model} ended unexpectedly ({describe_exit(status)}); the next request loads it again",
            retry_after=1,
        )
        if not self._ready.done():
            self._ready.set_exception(self._problem or self._load_error(status))
            self._ready.exception()  # mark as retrieved, in case no one waits
        if not self._stopping:
            await self._connection.read_rest_of_output()
            output = list(self._connection.output)
            if output or self._problem is None or self.exit_cause:  # otherwise it has said why it ends
                _log.error("worker exited", model=self.model, status=describe_exit(status), output=output)
            self.exit_reason = error.message
            self.exit_cause = self.exit_cause or ("exit" if status >= 0 else describe_exit(status))
        self._stopping = True
        self.requests.fail_all(error)
        self._owner.worker_exited(self)

    def _on_message(self, message: wire.ToGateway) -> None:
        match message:
            case wire.View():
                if self._watched:
                    self.view, self.tree = message, message.tree or self.tree
                    self.reports = message.reports or self.reports
                    self._first_view.set()
            case wire.Beat(in_step):
                self._health.watchdog.step_reported(in_step)
            case wire.Stats(tally, levels):
                self.levels = levels
                self._owner.worker_counted(self, tally)
            case wire.Loading(progress):
                self.progress = progress
                self._owner.worker_progressed(self)
            case wire.Ready(_, info, sandbox):
                self.sandbox = sandbox
                if sandbox.missing:
                    _log.warning(
                        "the worker is not fully sandboxed", model=self.model, pid=self.pid, active=sandbox.active,
                        missing=sandbox.missing,
                    )  # fmt: skip
                if not self._ready.done():
                    self._ready.set_result(info)
            case wire.LoadFailed(problem) if self.info is None:
                self._problem = problem.error()
            case wire.LoadFailed(problem):  # after the load it is a crash
                self._problem = WorkerCrashed(f"the worker of {self.model} ended: {problem.message}", retry_after=1)
            case _:
                self.requests.on_message(message)

    def _has_work(self) -> bool:
        return self.info is None or self.requests.pending

    def _on_hang(self, reason: str) -> None:
        """Fail its requests now: a process that is stuck in a driver may survive SIGKILL for a while."""
        output = list(self._connection.output)
        _log.error("worker hangs", model=self.model, pid=self.pid, reason=reason, output=output)
        self._problem = WorkerCrashed(
            f"the worker of {self.model} hung and was killed: {reason}; the next request loads it again", retry_after=1
        )
        self._stopping = True
        self.exit_reason, self.exit_cause = self._problem.message, "hang"
        self.requests.fail_all(self._problem)
        self._connection.kill()

    def _gone(self) -> WorkerCrashed:
        """For a request that did not reach it: a new error, because that request cannot be the cause."""
        if self._problem is not None:
            return WorkerCrashed(self._problem.message, retry_after=1)
        return WorkerCrashed(f"the worker of {self.model} has ended", retry_after=1)

    def _load_error(self, status: int) -> ModelLoadFailed:
        prefix = f"cannot load {self.model}: its worker "
        if status == -signal.SIGILL:
            return IllegalInstruction(f"{prefix}ended with {describe_exit(status)}")
        if status == -signal.SIGKILL and not self._connection.killed:
            return OutOfMemory(f"{prefix}was killed (SIGKILL), probably because memory ran out")
        return ModelLoadFailed(f"{prefix}ended with {describe_exit(status)}")


def _sandbox(model: Model) -> Sandbox:
    """The files that the worker may open: those of its model, and the folders of saved slots and of prefixes."""
    files = (
        *(file.path for file in (*model.files, *model.draft, *model.projector)),
        *(adapter.path for adapter in model.adapters),
    )
    writable = tuple(filter(None, (model.slot_save_path, model.options.cache_disk)))
    readable = () if model.is_fake else (model.path, *files)
    network = bool(model.options.rpc)
    return Sandbox(model.settings.sandbox, readable, writable, gpu=has_gpu(), network=network)
