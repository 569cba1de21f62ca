"""Loads and unloads models on demand. The only writer of their state; `policy` decides what to load and unload."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncGenerator, Coroutine, Iterable

import structlog

from paddock.errors import ModelLoadFailed, ModelLoading, ModelUnloaded, OutOfMemory, PaddockError
from paddock.failures import Failures
from paddock.fleet.catalogue.model import Model
from paddock.fleet.lifecycle.broadcast import Broadcast
from paddock.fleet.lifecycle.model_state import ModelState, ModelStatus
from paddock.fleet.lifecycle.policy import Bytes, Limits, Phase, decide
from paddock.fleet.lifecycle.preconditions import (
    LoadForecast,
    check_loadable,
    current_limits,
    forecast,
    not_served,
    reserve_embeddings,
    server_stopping,
    wait_for_backoff,
)
from paddock.fleet.lifecycle.records import Records
from paddock.fleet.lifecycle.rules import Rules
from paddock.fleet.lifecycle.spare import Spare
from paddock.fleet.lifecycle.starter import Starter
from paddock.fleet.memory.accounts import Accounts, Memory, insufficient, sizes_for_log
from paddock.fleet.memory.fit import Room
from paddock.fleet.process.worker import WorkerProcess
from paddock.tally import Tally
from paddock.types import EngineOptions

_log = structlog.get_logger(__name__)

_RESIDENCE_PER_LOAD = 2.0
"""A model stays at least this many times as long as its load took, so that loading does not dominate."""
_POLL_INTERVAL = 0.05
"""Seconds between checks for the end of the last request."""
_MOST_UNREAD_CHANGES = 256


class Lifecycle:
    """Implements `process.Owner`: its workers report their events to it."""

    def __init__(self, models: Iterable[Model], rules: Rules, memory: Memory, *, gpu: bool = False) -> None:
        self._rules = rules
        self._models = {model.name: ModelState(model) for model in models}
        self.records = Records()
        self.stopping = False
        self._timer: asyncio.TimerHandle | None = None
        self._changes = Broadcast[str](_MOST_UNREAD_CHANGES)
        self._watching_workers = False
        # The workers lock ranges of this file to share the CPU.
        self._cpu_lock_file = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._accounts = Accounts(memory, gpu=gpu)
        self._spare = Spare(self._cpu_lock_file, self)
        self._starter = Starter(self._spare, self._accounts, self._cache_share, self._room_for)

    def status(self, name: str) -> ModelStatus:
        return self._models[name].status(time.monotonic())

    def worker(self, name: str) -> WorkerProcess | None:
        """The worker of a loaded or unloading model, or None."""
        state = self._models.get(name)
        return state.live_worker if state is not None else None

    def options(self, model: Model) -> EngineOptions:
        """Its options as it was loaded; as configured while it is not loaded."""
        state = self._models.get(model.name)
        loaded = state.options if state is not None and state.live_worker is not None else None
        return loaded or model.options

    def estimate(self, model: Model) -> Bytes:
        """The memory that a model would take. Reads its file's header."""
        return self._accounts.needs(model)

    async def memory_allowed(self) -> Bytes:
        """The memory that all models together may take, on devices where that is known."""
        return await self._accounts.allowed(self._rules, self._models.values())

    def watch(self) -> AsyncGenerator[str]:
        """The names of all models, then the name of each model that changes, until the server stops."""
        return self._changes.subscribe(self._models)

    def watch_workers(self, *, on: bool) -> list[WorkerProcess]:
        """Turn the live views of all workers on or off, including later ones. Returns the current workers."""
        self._watching_workers = on
        workers = [worker for name in self._models if (worker := self.worker(name)) is not None]
        for worker in workers:
            worker.watch(on=on)
        return workers

    # ── load and unload ──────────────────────────────────────────────────────────────────────────────────────────────

    async def ensure_loaded(self, name: str) -> WorkerProcess:
        """The worker of the loaded model. Use it at once, without another await in between.

        Any number of callers share one load. Cancelling a caller does not cancel the load.
        """
        state = self._models.get(name)
        if state is None:
            raise not_served(name)
        self._refuse_if_stopping()
        if (worker := state.loaded_worker) is not None:
            return worker
        await check_loadable(state, self._accounts)
        await wait_for_backoff(state)
        await self._refresh_free_memory()
        self._refuse_if_stopping()
        if self._models.get(name) is not state:  # a reload removed it meanwhile
            raise not_served(name)
        waiter: asyncio.Future[WorkerProcess] = asyncio.get_running_loop().create_future()
        state.waiting[waiter] = time.monotonic()
        if (worker := state.loaded_worker) is not None:  # loaded meanwhile
            waiter.set_result(worker)
        else:
            self._reconcile()
        try:
            async with asyncio.timeout(self._rules.wait_timeout):
                return await waiter
        except TimeoutError:
            raise ModelLoading(
                f"{name} is still {state.phase} after {self._rules.wait_timeout:g} s (wait_timeout)",
                retry_after=min(self._rules.wait_timeout, 60),
            ) from None
        finally:
            del state.waiting[waiter]
            if not state.waiting:  # from now on it may be idle; the caller uses the worker first
                asyncio.get_running_loop().call_soon(self._reconcile)

    async def reserve_embeddings(self, name: str) -> None:
        """Count the memory for embeddings of a model that generates. Raises `InsufficientMemory`."""
        if (state := self._models.get(name)) is not None:
            await reserve_embeddings(state, self._accounts, self._rules, self._models.values())

    async def limits(self) -> Bytes:
        """The most that all models together may take on each device now."""
        return (await current_limits(self._accounts, self._rules, self._models.values())).memory

    async def fits(self, model: Model) -> LoadForecast:
        """What a load of this model would take. It may have other options than the one that is served."""
        return await forecast(model, self._accounts, self._rules, self._models.values())

    async def unload(self, name: str) -> bool:
        """Unload a model after its running requests. New requests load it again. False if it was not loaded."""
        state = self._models.get(name)
        if state is None or state.phase == "unloaded":
            return False
        self._request_unload(state)
        while state.unload_requested and state.task is not None:
            await asyncio.wait({state.task})
        return True

    def stay_loaded(self, name: str, seconds: float) -> None:
        """Unload a model after so many idle seconds from now on, until it is loaded again; 0: never."""
        if (state := self._models.get(name)) is not None:
            state.stay, state.last_used = seconds, time.monotonic()
            self._reconcile()

    def reset_failures(self, name: str) -> None:
        self._models[name].failures.succeeded()

    def replace(self, models: Iterable[Model], rules: Rules) -> None:
        """Serve these models from now on. Changed and removed models are unloaded after their running requests."""
        self._rules = rules
        wanted = {model.name: model for model in models}
        for name, state in list(self._models.items()):
            if wanted.get(name) == state.next:
                continue
            state.next = wanted.get(name)
            if state.phase == "unloaded":
                self._mark_unloaded(state)
            else:
                self._request_unload(state)
        self._models.update((name, ModelState(wanted[name])) for name in wanted if name not in self._models)
        self._reconcile()

    # ── shutdown ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def drain(self, grace: float) -> None:
        """Refuse new requests; let running ones finish within `grace` seconds, then fail them."""
        self.stopping = True
        self._changes.close()
        for state in self._models.values():
            if state.phase == "unloaded":  # and is not loaded any more
                state.refuse_waiting(server_stopping())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while any(state.busy for state in self._models.values()):  # noqa: ASYNC110 (there is no single event)
                    await asyncio.sleep(_POLL_INTERVAL)
        self.abort()

    def abort(self) -> None:
        """Fail every request and cancel every load, now."""
        self.stopping = True
        for state in self._models.values():
            state.refuse_waiting(server_stopping())
            if state.worker is not None:
                state.worker.requests.fail_all(server_stopping())
            if state.task is not None and state.phase == "loading":
                state.task.cancel()

    async def close(self) -> None:
        self.abort()
        if self._timer is not None:
            self._timer.cancel()
        tasks = [state.task for state in self._models.values() if state.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(state.worker.stop() for state in self._models.values() if state.worker is not None))
        await self._spare.close()
        self._cpu_lock_file.close()

    # ── events of workers ────────────────────────────────────────────────────────────────────────────────────────────

    def worker_counted(self, worker: WorkerProcess, tally: Tally) -> None:
        record = self.records.of(worker.model)
        record.counted(tally, time.monotonic())
        if worker.levels is not None:
            record.longest = max(record.longest, worker.levels.longest)
        self._share_cache()

    def worker_idle(self, worker: WorkerProcess) -> None:
        state = self._models.get(worker.model)
        if state is not None and state.worker is worker and worker.alive:
            state.last_used = time.monotonic()
            self._reconcile()

    def worker_progressed(self, worker: WorkerProcess) -> None:
        self._changes.publish(worker.model)

    def worker_exited(self, worker: WorkerProcess) -> None:
        """The worker of a loaded model crashed. During a load or unload the task that waits for it handles its exit."""
        state = self._models.get(worker.model)
        if state is None or state.worker is not worker or state.phase != "loaded":
            return
        if worker.requests.completed:
            state.failures.succeeded()
        self.records.of(worker.model).crashes[worker.exit_cause] += 1
        state.failures.failed(worker.exit_reason, time.monotonic())
        self._mark_unloaded(state)
        self._reconcile()

    # ── decisions ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _reconcile(self) -> None:
        """Act on the policy's decision, and schedule the next check."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.stopping:
            return
        now = time.monotonic()
        states = self._models.values()
        active = [state for state in states if state.phase != "unloaded" or state.waiting_since is not None]
        decision = decide([state.candidate() for state in active], self._limits(active), now)
        for name, shortage in decision.impossible.items():
            self._models[name].refuse_waiting(insufficient(name, shortage))
        for name in decision.unload:
            self._start_unload(self._models[name])
        for name in decision.load:
            self._start_task(self._models[name], "loading", self._load(self._models[name]))
        if active:
            later = now + self._rules.check_interval
            moment = later if decision.recheck_at is None else min(later, decision.recheck_at)
            self._timer = asyncio.get_running_loop().call_later(max(moment - now, 0.01), self._reconcile)

    def _limits(self, active: list[ModelState]) -> Limits:
        if all(state.phase != "unloaded" for state in active):
            return Limits()  # they matter only while a model waits for its load
        return self._accounts.limits(self._rules, active)

    async def _refresh_free_memory(self) -> None:
        if self._rules.check_memory:
            await self._accounts.refresh()

    def _refuse_if_stopping(self) -> None:
        if self.stopping:
            raise server_stopping()

    def _cache_share(self, state: ModelState) -> int:
        """Host memory for the prefix cache of a worker that is about to load; the other workers shrink theirs."""
        self._share_cache()
        return state.cache_share

    def _room_for(self, state: ModelState) -> Room:
        return self._accounts.room_for(state, self._rules, self._models.values())

    def _share_cache(self) -> None:
        self._accounts.share_cache(self._rules, [one for one in self._models.values() if one.phase != "unloaded"])

    # ── transitions ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _start_task(self, state: ModelState, phase: Phase, work: Coroutine[None, None, None]) -> None:
        state.phase = phase
        state.task = asyncio.get_running_loop().create_task(work)
        state.task.add_done_callback(lambda task: self._on_task_done(state, task))
        self._changes.publish(state.model.name)

    def _on_task_done(self, state: ModelState, task: asyncio.Task[None]) -> None:
        """Handle a task that was cancelled before its first step, which cannot handle it itself."""
        if task.cancelled() and state.task is task:
            self._mark_unloaded(state)
            self._reconcile()

    def _request_unload(self, state: ModelState) -> None:
        """Of a model that loads, the waiting requests fail, unless it is to be loaded with new settings. Requests that
        come from now on load it again.
        """
        state.unload_requested = True
        if state.phase == "loaded":
            self._start_unload(state)
        elif state.phase == "loading" and state.task is not None:
            if state.next is state.model:
                name = state.model.name
                state.refuse_waiting(ModelUnloaded(f"{name} was unloaded while it was loading", retry_after=1))
            state.task.cancel()

    def _start_unload(self, state: ModelState) -> None:
        assert state.worker is not None, "a loaded model has a worker"
        self._start_task(state, "unloading", self._unload(state, state.worker))
        self._prepare_spare(state)

    async def _unload(self, state: ModelState, worker: WorkerProcess) -> None:
        await worker.requests.wait_idle()
        await worker.stop()
        record = self.records.of(worker.model)
        if worker.exit_reason:
            record.crashes[worker.exit_cause] += 1
        else:
            # It was loaded and ended in order: an earlier crash says nothing about it any more.
            state.failures.succeeded()
        record.unloads += 1
        _log.info("unloaded", model=state.model.name)
        self._accounts.changed()
        await self._refresh_free_memory()
        self._mark_unloaded(state)
        self._reconcile()

    async def _load(self, state: ModelState) -> None:
        model, started = state.model, time.monotonic()
        _log.info("loading", model=model.name, **sizes_for_log(needs=state.needs or {}))
        try:
            worker = await self._start_worker(state)
        except asyncio.CancelledError:
            self._mark_unloaded(state)
        except PaddockError as error:
            self._fail_load(state, error)
        except Exception as error:  # a bug must not leave the model loading for ever
            _log.exception("load failed with an unexpected error", model=model.name)
            self._fail_load(state, ModelLoadFailed(f"{type(error).__name__}: {error}"))
        else:
            self._mark_loaded(state, worker, time.monotonic() - started)
        self._reconcile()

    def _fail_load(self, state: ModelState, error: PaddockError) -> None:
        name = state.model.name
        state.failures.failed(error.message, time.monotonic())
        self.records.of(name).load_failures[error.code] += 1
        _log.error("load failed", model=name, error=error.message)
        state.refuse_waiting(error)
        self._mark_unloaded(state)

    async def _start_worker(self, state: ModelState) -> WorkerProcess:
        """If memory runs out, retry once after unloading the idle models."""
        try:
            return await self._starter.start(state)
        except OutOfMemory as error:
            idle = [
                other.model.name
                for other in self._models.values()
                if other.phase == "loaded" and not other.busy and not other.model.settings.pinned
            ]
            if not idle:
                raise
            name = state.model.name
            _log.warning(
                "out of memory: unloading idle models and retrying", model=name, idle=idle, error=error.message
            )
            await asyncio.gather(*map(self.unload, idle))
            return await self._starter.start(state)

    def _mark_loaded(self, state: ModelState, worker: WorkerProcess, seconds: float) -> None:
        now = time.monotonic()
        self.records.of(state.model.name).loaded(seconds, worker.info)
        state.phase, state.task = "loaded", None
        state.loaded_at = state.last_used = now
        state.resident_until = now + max(self._rules.min_residence, _RESIDENCE_PER_LOAD * seconds)
        memory = sizes_for_log(estimated=state.takes, measured=self._accounts.measure(state))
        _log.info("loaded", model=state.model.name, pid=worker.pid, seconds=round(seconds, 2), **memory)
        self._prepare_spare(state)
        if self._watching_workers:
            worker.watch(on=True)
        self._share_cache()
        if state.unload_requested:
            self._start_unload(state)
            return
        for waiter in state.waiting:
            if not waiter.done():
                waiter.set_result(worker)
        self._changes.publish(state.model.name)

    def _prepare_spare(self, state: ModelState) -> None:
        """Keep a process ready while another model may be loaded next."""
        others = any(one.phase in ("unloaded", "unloading") and one.next is not None for one in self._models.values())
        if self._rules.spare_worker and others and not state.model.is_fake:
            self._spare.prepare(state.model.options, at_once=state.phase == "unloading")

    def _mark_unloaded(self, state: ModelState) -> None:
        name = state.model.name
        state.clear()
        self._share_cache()
        if state.next is None:
            state.refuse_waiting(not_served(name))
            self._models.pop(name, None)
        elif state.next is not state.model:
            state.model, state.failures = state.next, Failures()
            # Waiting requests skip `check_loadable`, so the new model's needs must be known before its load.
            state.needs = self._accounts.needs(state.model) if state.waiting else None
        self._changes.publish(name)
