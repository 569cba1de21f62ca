"""Models that come when called and leave when idle: the one writer of who is there. `policy` decides who is to be."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncGenerator, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec
import structlog

from paddock.config import ModelManagerSettings
from paddock.errors import (
    IllegalInstruction,
    InsufficientMemory,
    ModelCrashing,
    ModelLoadFailed,
    ModelLoading,
    ModelUnloaded,
    OutOfMemory,
    PaddockError,
    ServerStopping,
)
from paddock.fleet.catalogue import Model
from paddock.fleet.offload import fitting_layers
from paddock.fleet.policy import Bytes, Failures, Limits, Phase, Shortage, Standing, decide
from paddock.fleet.process import WorkerProcess
from paddock.fleet.spare import Spare

_log = structlog.get_logger(__name__)

State = Literal["unloaded", "loading", "loaded", "unloading"]
_STATES: dict[Phase, State] = {"out": "unloaded", "loading": "loading", "in": "loaded", "leaving": "unloading"}
_STAY_PER_LOAD = 2.0
"""A model stays at least so many times as long as it took to load, so that loading is not all that happens."""
_MOST_UNSEEN = 256
_SHORT_PAUSE = 2.0
"""Seconds that a request waits for a model that is left alone after failures."""


class Memory(Protocol):
    """What there is of it on this machine."""

    def available(self) -> Bytes:
        """What is free on each device right now. To be asked on a thread of its own: GPUs take their time."""

    def taken(self, pid: int) -> Bytes:
        """What a worker holds that nobody could take from it without ending it; on devices where that can be told."""

    def changed(self) -> None:
        """A worker has come or gone."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator wants of all models together."""

    memory_limit: Bytes = field(default_factory=dict)
    """The most they may take; checked beside what is really free."""
    check_memory: bool = True
    """Whether what is really free matters."""
    models_max: int | None = None
    min_residence: float = 5.0
    """Seconds that a model in use stays, whoever waits for its place."""
    wait_timeout: float = 600.0
    """Seconds that a request waits for its model."""
    check_interval: float = 60.0
    spare_worker: bool = True
    """Whether a process is kept ready for the next load, where there are several models."""

    @classmethod
    def of(cls, settings: ModelManagerSettings) -> Rules:
        limits = {"host": settings.memory_limit, "gpu": settings.gpu_memory_limit}
        return cls(
            memory_limit={device: limit for device, limit in limits.items() if limit is not None},
            check_memory=settings.check_memory,
            models_max=settings.models_max or None,
            min_residence=settings.min_residence,
            wait_timeout=settings.wait_timeout,
            check_interval=settings.check_interval,
            spare_worker=settings.spare_worker,
        )


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """What a look at a model shows. Looking changes nothing."""

    model: Model
    state: State
    running: int = 0
    waiting: int = 0
    slots: int = 0
    pid: int | None = None
    progress: float = 0.0
    """Of its loading."""
    needs: Bytes = field(default_factory=dict)
    loaded_for: float = 0.0
    """Seconds."""
    idle_for: float = 0.0
    failure: str = ""
    """Why it last failed, unless it has worked since."""
    failures: int = 0
    retry_after: float = 0.0
    """Seconds for which it is left alone after them."""


class _Seat:
    """One model's place."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.next: Model | None = model
        """What it is to be from its next load on; None: it is not to be served any more."""
        self.phase: Phase = "out"
        self.worker: WorkerProcess | None = None
        self.task: asyncio.Task[None] | None = None
        """What brings it in or sees it off."""
        self.waiting: dict[asyncio.Future[WorkerProcess], float] = {}
        """Who waits for it, since when. One that was let in is here until it has come in."""
        self.dismissed = False
        """It leaves whoever wants it."""
        self.failures = Failures()
        self.needs: dict[str, int] | None = None
        self.last_used = 0.0
        self.loaded_at = 0.0
        self.stays_until = 0.0

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or (self.worker is not None and self.worker.busy)

    def standing(self) -> Standing:
        return Standing(
            self.model.name,
            self.needs or {},
            self.phase,
            busy=self.busy,
            stays_until=self.stays_until,
            last_used=self.last_used,
            idle_timeout=self.model.idle_timeout,
            pinned=self.model.pinned,
            waited_for_since=self.waited_for_since,
        )

    @property
    def waited_for_since(self) -> float | None:
        """Since when somebody waits who has been told nothing yet."""
        return min((since for waiter, since in self.waiting.items() if not waiter.done()), default=None)

    def status(self, now: float) -> ModelStatus:
        worker, there = self.worker, self.phase in ("in", "leaving")
        return ModelStatus(
            self.model,
            _STATES[self.phase],
            running=worker.running if worker is not None else 0,
            waiting=len(self.waiting),
            slots=worker.info.n_slots if worker is not None and worker.info is not None else 0,
            pid=worker.pid if worker is not None else None,
            progress=worker.progress if worker is not None else 0.0,
            needs=self.needs or {},
            loaded_for=now - self.loaded_at if there else 0.0,
            idle_for=now - self.last_used if there and not self.busy else 0.0,
            failure=self.failures.reason,
            failures=self.failures.count,
            retry_after=self.failures.pause(now),
        )

    def refuse_waiting(self, error: PaddockError) -> None:
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_exception(error)


class Lifecycle:
    """Implements `process.Owner`: it is told what happens to the workers that it starts."""

    def __init__(self, models: Iterable[Model], rules: Rules, memory: Memory, *, gpu: bool = False) -> None:
        self._rules = rules
        self._memory = memory
        self._free: Bytes = {}
        self._gpu = gpu
        self._seats = {model.name: _Seat(model) for model in models}
        self._repack = True
        self._stopping = False
        self._timer: asyncio.TimerHandle | None = None
        self._watchers: set[asyncio.Queue[str]] = set()
        # The workers lock parts of this file to take turns on the CPU.
        self._turns = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._spare = Spare(self._turns, self)

    # ── what is asked of it ──────────────────────────────────────────────────────────────────────────────────────────

    def status(self, name: str) -> ModelStatus:
        return self._seats[name].status(time.monotonic())

    def worker(self, name: str) -> WorkerProcess | None:
        """The worker of a model that is there."""
        seat = self._seats.get(name)
        if seat is None or seat.phase not in ("in", "leaving") or seat.worker is None or not seat.worker.alive:
            return None
        return seat.worker

    async def enter(self, name: str) -> WorkerProcess:
        """The model's worker, loaded; to be used at once, without another await in between.

        However many ask, one load happens and all wait for it, and none of them takes it away by leaving.
        """
        seat = self._seats.get(name)
        if seat is None:
            raise ModelUnloaded(f"{name} is not served any more", param="model")
        self._refuse_if_stopping()
        if seat.phase == "in" and seat.worker is not None and seat.worker.alive:
            return seat.worker
        await self._assess(seat)
        await self._recovered(seat)
        await self._look_at_memory()
        self._refuse_if_stopping()
        waiter: asyncio.Future[WorkerProcess] = asyncio.get_running_loop().create_future()
        seat.waiting[waiter] = time.monotonic()
        if seat.phase == "in" and seat.worker is not None and seat.worker.alive:  # it came while we looked
            waiter.set_result(seat.worker)
        else:
            self._act()
        try:
            async with asyncio.timeout(self._rules.wait_timeout):
                return await waiter
        except TimeoutError:
            raise ModelLoading(
                f"{name} is {_STATES[seat.phase]} still, after {self._rules.wait_timeout:g} s of waiting",
                retry_after=min(self._rules.wait_timeout, 60),
            ) from None
        finally:
            del seat.waiting[waiter]

    async def dismiss(self, name: str) -> bool:
        """Have a model leave, after those it serves; returns when it is gone. Who asks for it from now on waits, and
        calls it back. False if it was not there.
        """
        seat = self._seats.get(name)
        if seat is None or seat.phase == "out":
            return False
        self._dismiss(seat)
        while seat.dismissed and seat.task is not None:
            await asyncio.wait({seat.task})
        return True

    def forgive(self, name: str) -> None:
        """Forget its failures: somebody wants it to be tried again."""
        self._seats[name].failures.succeeded()

    def replace(self, models: Iterable[Model], rules: Rules) -> list[str]:
        """Serve these models from now on. Returns the names of those that are new, changed or gone; of them those that
        are there leave after those they serve. Nothing happens to any other.
        """
        self._rules = rules
        wanted = {model.name: model for model in models}
        changed = [name for name, seat in self._seats.items() if wanted.get(name) != seat.next]
        for name in changed:
            seat = self._seats[name]
            seat.next = wanted.get(name)
            if seat.phase == "out":
                self._is_out(seat)
            else:
                self._dismiss(seat)
        new = [name for name in wanted if name not in self._seats]
        self._seats.update((name, _Seat(wanted[name])) for name in new)
        self._act()
        return changed + new

    async def watch(self) -> AsyncGenerator[str]:
        """The names of all models, and then of each as something happens to it. Who falls far behind misses some."""
        queue: asyncio.Queue[str] = asyncio.Queue(_MOST_UNSEEN)
        self._watchers.add(queue)
        try:
            for name in list(self._seats):
                yield name
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def drain(self, grace: float) -> None:
        """Take nothing new; let what runs finish within `grace` seconds, then end it with an error."""
        self._stopping = True
        workers = [seat.worker for seat in self._seats.values() if seat.worker is not None]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await asyncio.gather(*(worker.unused() for worker in workers))
        self.abandon()

    def abandon(self) -> None:
        """End everything that runs, loads or waits, now."""
        self._stopping = True
        for seat in self._seats.values():
            seat.refuse_waiting(ServerStopping("the server is stopping"))
            if seat.worker is not None:
                seat.worker.fail_all(ServerStopping("the server is stopping"))
            if seat.task is not None and seat.phase == "loading":
                seat.task.cancel()

    async def close(self) -> None:
        self.abandon()
        if self._timer is not None:
            self._timer.cancel()
        tasks = [seat.task for seat in self._seats.values() if seat.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(seat.worker.stop() for seat in self._seats.values() if seat.worker is not None))
        await self._spare.close()
        self._turns.close()

    # ── what workers tell ────────────────────────────────────────────────────────────────────────────────────────────

    def worker_unused(self, worker: WorkerProcess) -> None:
        seat = self._seats.get(worker.model)
        if seat is not None and seat.worker is worker and worker.alive:
            seat.last_used = time.monotonic()
            self._act()

    def worker_progressed(self, worker: WorkerProcess) -> None:
        self._tell(worker.model)

    def worker_gone(self, worker: WorkerProcess) -> None:
        """It ended by itself. While it loads or leaves, the task that waits for it deals with it."""
        seat = self._seats.get(worker.model)
        if seat is None or seat.worker is not worker or seat.phase != "in":
            return
        if worker.completed:
            seat.failures.succeeded()
        seat.failures.failed(worker.end, time.monotonic())
        self._is_out(seat)
        self._act()

    # ── deciding ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _act(self) -> None:
        """Do what is to be done now, and look again when time alone will have changed that."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._stopping:
            return
        now = time.monotonic()
        concerned = [seat for seat in self._seats.values() if seat.phase != "out" or seat.waited_for_since is not None]
        decision = decide([seat.standing() for seat in concerned], self._limits(concerned), now)
        for name, shortage in decision.impossible.items():
            self._seats[name].refuse_waiting(_insufficient(name, shortage))
        for name in decision.leave:
            self._see_off(self._seats[name])
        for name in decision.load:
            self._begin(self._seats[name], "loading", self._bring(self._seats[name]))
        if concerned:
            moment = now + self._rules.check_interval
            if decision.look_again_at is not None:
                moment = min(moment, decision.look_again_at)
            self._timer = asyncio.get_running_loop().call_later(max(moment - now, 0.01), self._act)

    def _limits(self, concerned: list[_Seat]) -> Limits:
        """What the operator allows, and no more than is free beside what the models hold already."""
        memory = dict(self._rules.memory_limit)
        if self._rules.check_memory and any(seat.phase == "out" for seat in concerned):
            held: dict[str, int] = {}
            for seat in concerned:
                for device, taken in self._measure(seat).items():
                    held[device] = held.get(device, 0) + taken
            for device, free in self._free.items():
                most = free + held.get(device, 0)
                memory[device] = min(memory.get(device, most), most)
        return Limits(memory, self._rules.models_max)

    def _measure(self, seat: _Seat) -> Bytes:
        """What its worker holds; on devices where that cannot be told, what it needs. Needs are corrected by it."""
        if seat.phase == "out" or seat.worker is None or seat.worker.pid is None:
            return {}
        needs, taken = dict(seat.needs or {}), self._memory.taken(seat.worker.pid)
        seat.needs = needs | {device: max(size, needs.get(device, 0)) for device, size in taken.items()}
        return needs | dict(taken)

    async def _assess(self, seat: _Seat) -> None:
        """Whether it can be loaded at all, and what it would need."""
        if seat.needs is not None:
            return
        model = seat.model
        problem = await asyncio.to_thread(model.problem)
        if problem is not None:
            raise ModelLoadFailed(f"{model.name} cannot be loaded: {problem}", param="model")
        needs = await asyncio.to_thread(_needs, model, gpu=self._gpu)
        if seat.model is model:
            seat.needs = needs

    async def _recovered(self, seat: _Seat) -> None:
        """After failures: wait if it is not for long, or say so."""
        pause = seat.failures.pause(time.monotonic())
        if seat.phase != "out" or pause == 0:
            return
        if pause > _SHORT_PAUSE:
            raise ModelCrashing(
                f"{seat.model.name} failed {seat.failures.count} times in a row and is left alone for {pause:.0f} s; "
                f"the last time: {seat.failures.reason}",
                retry_after=pause,
            )
        await asyncio.sleep(pause)

    async def _look_at_memory(self) -> None:
        if self._rules.check_memory:
            self._free = await asyncio.to_thread(self._memory.available)

    def _refuse_if_stopping(self) -> None:
        if self._stopping:
            raise ServerStopping("the server is stopping")

    # ── doing ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, seat: _Seat, phase: Phase, doing: Coroutine[None, None, None]) -> None:
        seat.phase = phase
        seat.task = asyncio.get_running_loop().create_task(doing)
        self._tell(seat.model.name)

    def _dismiss(self, seat: _Seat) -> None:
        seat.dismissed = True
        if seat.phase == "in":
            self._see_off(seat)
        elif seat.phase == "loading" and seat.task is not None:
            seat.task.cancel()

    def _see_off(self, seat: _Seat) -> None:
        assert seat.worker is not None, "it is there"
        self._begin(seat, "leaving", self._follow_out(seat, seat.worker))

    async def _follow_out(self, seat: _Seat, worker: WorkerProcess) -> None:
        await worker.unused()
        await worker.stop()
        _log.info("unloaded", model=seat.model.name)
        self._memory.changed()
        await self._look_at_memory()
        self._is_out(seat)
        self._act()

    async def _bring(self, seat: _Seat) -> None:
        model, begun = seat.model, time.monotonic()
        _log.info("loading", model=model.name, **_words(needs=seat.needs or {}))
        try:
            worker = await self._start_with_room(seat)
        except asyncio.CancelledError:
            if seat.next is model:
                seat.refuse_waiting(ModelUnloaded(f"{model.name} was unloaded while it was loading", retry_after=1))
            self._is_out(seat)
        except PaddockError as error:
            seat.failures.failed(error.message, time.monotonic())
            _log.error("load failed", model=model.name, error=error.message)
            seat.refuse_waiting(error)
            self._is_out(seat)
        else:
            self._is_in(seat, worker, time.monotonic() - begun)
        self._act()

    async def _start_with_room(self, seat: _Seat) -> WorkerProcess:
        """Should there turn out to be too little memory: once more, when those are gone whom nobody uses."""
        try:
            return await self._start(seat)
        except OutOfMemory as error:
            idle = [
                other.model.name
                for other in self._seats.values()
                if other.phase == "in" and not other.busy and not other.model.pinned
            ]
            if not idle:
                raise
            _log.warning("too little memory: trying again without idle models", model=seat.model.name, idle=idle)
            await asyncio.gather(*(self.dismiss(name) for name in idle))
            _log.info("loading again", model=seat.model.name, after=error.message)
            return await self._start(seat)

    async def _start(self, seat: _Seat) -> WorkerProcess:
        try:
            return await self._spawn(seat)
        except IllegalInstruction:
            # Seen with GCC before 12.4 on CPUs with AMX. Slower without, but it answers; later loads know at once.
            _log.warning(
                "this build's fastest kernels crash on this machine: going on without them", model=seat.model.name
            )
            self._repack = False
            return await self._spawn(seat)

    async def _spawn(self, seat: _Seat) -> WorkerProcess:
        model = seat.model
        pooling = await asyncio.to_thread(model.pooling)
        options = msgspec.structs.replace(model.options, pooling=pooling, repack=self._repack)
        if model.auto_layers:
            free = (await asyncio.to_thread(self._memory.available)).get("gpu", 0)
            layers = await asyncio.to_thread(fitting_layers, model, free)
            _log.info("layers that fit the GPU", model=model.name, layers=layers, free=gib(free))
            options = msgspec.structs.replace(options, n_gpu_layers=layers)
        worker = seat.worker = self._spare.take(options) or WorkerProcess(self._turns, self)
        try:
            if worker.pid is None:
                await worker.spawn(options)
            await worker.load(model, options)
        except BaseException:
            await worker.stop()
            raise
        self._memory.changed()
        if self._rules.spare_worker and len(self._seats) > 1 and not model.is_fake:
            self._spare.prepare(options)
        return worker

    def _is_in(self, seat: _Seat, worker: WorkerProcess, seconds: float) -> None:
        now = time.monotonic()
        seat.phase, seat.task = "in", None
        seat.loaded_at = seat.last_used = now
        seat.stays_until = now + max(self._rules.min_residence, _STAY_PER_LOAD * seconds)
        memory = _words(estimated=seat.needs or {}, measured=self._measure(seat))
        _log.info("loaded", model=seat.model.name, pid=worker.pid, seconds=round(seconds, 2), **memory)
        if seat.dismissed:
            self._see_off(seat)
            return
        for waiter in seat.waiting:
            if not waiter.done():
                waiter.set_result(worker)
        self._tell(seat.model.name)

    def _is_out(self, seat: _Seat) -> None:
        name = seat.model.name
        seat.phase, seat.worker, seat.task, seat.dismissed = "out", None, None, False
        if seat.next is None:
            seat.refuse_waiting(ModelUnloaded(f"{name} is not served any more", param="model"))
            self._seats.pop(name, None)
        elif seat.next is not seat.model:
            seat.model, seat.failures = seat.next, Failures()
            # Whoever waits has been waiting for the old one: what the new one needs must be known before it is loaded.
            seat.needs = _needs(seat.model, gpu=self._gpu) if seat.waiting else None
        self._tell(name)

    def _tell(self, name: str) -> None:
        for queue in self._watchers:
            if not queue.full():
                queue.put_nowait(name)


def _needs(model: Model, *, gpu: bool) -> dict[str, int]:
    found = model.estimate(gpu=gpu)
    if found is None:
        return {}
    if not gpu:
        return {"host": found.total}
    # Layers that are offloaded as far as there is room ask for none.
    return {"host": found.host.total, "gpu": 0 if model.auto_layers else found.device.total}


_HELP = "a smaller context (-c), fewer requests at once (-np) or a smaller cache (-ctk q8_0 -ctv q8_0) would help"


def _insufficient(name: str, shortage: Shortage) -> InsufficientMemory:
    keeping = f", of which {', '.join(shortage.keeping)} always keep {gib(shortage.pinned)}" if shortage.keeping else ""
    return InsufficientMemory(
        f"{name} needs {gib(shortage.needed)} of {shortage.device} memory, but all models together may have "
        f"{gib(shortage.limit)}{keeping}; {_HELP}",
        param="model",
        retry_after=60,
    )


def gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def _words(**told: Bytes) -> dict[str, str]:
    """Sizes as a log shows them; nothing of those that are not known."""
    words = {name: ", ".join(f"{at} {gib(size)}" for at, size in sizes.items() if size) for name, sizes in told.items()}
    return {name: text for name, text in words.items() if text}
