"""Models that come when called and leave when idle: the one writer of who is there. `policy` decides who is to be."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncGenerator, Coroutine, Iterable

import structlog

from paddock.errors import (
    ModelCrashing,
    ModelLoadFailed,
    ModelLoading,
    ModelUnloaded,
    OutOfMemory,
    PaddockError,
    ServerStopping,
)
from paddock.failures import Failures
from paddock.fleet.catalogue.model import Model
from paddock.fleet.lifecycle.model_state import STATES, ModelStatus, Seat
from paddock.fleet.lifecycle.policy import Bytes, Limits, Phase, decide
from paddock.fleet.lifecycle.records import Records
from paddock.fleet.lifecycle.rules import Rules
from paddock.fleet.lifecycle.starting import Starter
from paddock.fleet.memory.accounts import Accounts, Memory, in_words, insufficient
from paddock.fleet.memory.cache_shares import cache_shares, is_worth_telling
from paddock.fleet.process.worker import WorkerProcess
from paddock.tally import Tally

_log = structlog.get_logger(__name__)

_STAY_PER_LOAD = 2.0
"""A model stays at least so many times as long as it took to load, so that loading is not all that happens."""
_MOST_UNSEEN = 256
_LOOK_EVERY = 0.05
"""Seconds between two looks at whether the last request has ended."""
_SHORT_PAUSE = 2.0
"""Seconds that a request waits for a model that is left alone after failures."""


class Lifecycle:
    """Implements `process.Owner`: it is told what happens to the workers that it starts."""

    def __init__(self, models: Iterable[Model], rules: Rules, memory: Memory, *, gpu: bool = False) -> None:
        self._rules = rules
        self._seats = {model.name: Seat(model) for model in models}
        self.records = Records()
        self._stopping = False
        self._timer: asyncio.TimerHandle | None = None
        self._watchers: set[asyncio.Queue[str | None]] = set()
        self._shown = False
        # The workers lock parts of this file to take turns on the CPU.
        self._turns = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._accounts = Accounts(memory, gpu=gpu)
        self._starter = Starter(self._turns, self, self._accounts, self._grant_cache)

    # ── what is asked of it ──────────────────────────────────────────────────────────────────────────────────────────

    def status(self, name: str) -> ModelStatus:
        return self._seats[name].status(time.monotonic())

    @property
    def memory_limit(self) -> Bytes:
        return self._rules.memory_limit

    @property
    def cache_ram(self) -> int:
        return self._rules.cache_ram

    @property
    def stopping(self) -> bool:
        return self._stopping

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
        if self._seats.get(name) is not seat:  # a reload took it away while we looked
            raise ModelUnloaded(f"{name} is not served any more", param="model")
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
                f"{name} is {STATES[seat.phase]} still, after {self._rules.wait_timeout:g} s of waiting",
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
        self._seats.update((name, Seat(wanted[name])) for name in new)
        self._act()
        return changed + new

    async def watch(self) -> AsyncGenerator[str]:
        """The names of all models, and then of each as something happens to it, until the server stops. Who falls far
        behind misses some.
        """
        queue: asyncio.Queue[str | None] = asyncio.Queue(_MOST_UNSEEN)
        self._watchers.add(queue)
        try:
            for name in list(self._seats):
                yield name
            while (told := await queue.get()) is not None:
                yield told
        finally:
            self._watchers.discard(queue)

    def show(self, *, on: bool) -> list[WorkerProcess]:
        """Have the workers show themselves, also those that come later, or no longer. Returns those that are told."""
        self._shown = on
        there = [worker for name in self._seats if (worker := self.worker(name)) is not None]
        for worker in there:
            worker.watch(on=on)
        return there

    def estimate(self, model: Model) -> Bytes:
        """What a model would take. Reads its file's header."""
        return self._accounts.needs(model)

    async def memory_allowed(self) -> Bytes:
        """What all models together may take, on devices where that is known."""
        return await self._accounts.allowed(self._rules, self._seats.values())

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def drain(self, grace: float) -> None:
        """Take nothing new; let what runs finish within `grace` seconds, then end it with an error."""
        self._stopping = True
        for queue in self._watchers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(None)
        for seat in self._seats.values():
            if seat.phase == "out":  # and nobody is loaded any more
                seat.refuse_waiting(ServerStopping("the server is stopping"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while any(seat.busy for seat in self._seats.values()):  # noqa: ASYNC110 (no one event tells)
                    await asyncio.sleep(_LOOK_EVERY)
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
        await self._starter.close()
        self._turns.close()

    # ── what workers tell ────────────────────────────────────────────────────────────────────────────────────────────

    def worker_counted(self, worker: WorkerProcess, tally: Tally) -> None:
        record = self.records.of(worker.model)
        record.counted(tally, time.monotonic())
        if worker.levels is not None:
            record.longest = max(record.longest, worker.levels.longest)
        self._share_cache()

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
        self.records.of(worker.model).crashes[worker.end_cause] += 1
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
            self._seats[name].refuse_waiting(insufficient(name, shortage))
        for name in decision.leave:
            self._see_off(self._seats[name])
        for name in decision.load:
            self._begin(self._seats[name], "loading", self._bring(self._seats[name]))
        if concerned:
            moment = now + self._rules.check_interval
            if decision.look_again_at is not None:
                moment = min(moment, decision.look_again_at)
            self._timer = asyncio.get_running_loop().call_later(max(moment - now, 0.01), self._act)

    def _limits(self, concerned: list[Seat]) -> Limits:
        """They matter where somebody waits."""
        waited_for = any(seat.phase == "out" for seat in concerned)
        return self._accounts.limits(self._rules, concerned) if waited_for else Limits()

    async def _assess(self, seat: Seat) -> None:
        """Whether it can be loaded at all, and what it would need."""
        if seat.needs is not None:
            return
        model = seat.model
        problem = await asyncio.to_thread(model.problem)
        if problem is not None:
            raise ModelLoadFailed(f"{model.name} cannot be loaded: {problem}", param="model")
        needs = await asyncio.to_thread(self._accounts.needs, model)
        if seat.model is model:
            seat.needs = needs

    async def _recovered(self, seat: Seat) -> None:
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
            await self._accounts.look()

    def _refuse_if_stopping(self) -> None:
        if self._stopping:
            raise ServerStopping("the server is stopping")

    # ── prefixes in host memory ──────────────────────────────────────────────────────────────────────────────────────

    def _grant_cache(self, seat: Seat) -> int:
        """What a worker that is about to load may take for prefixes; the others give it up."""
        self._share_cache()
        return seat.cache_share

    def _share_cache(self) -> None:
        """Divide the memory for prefixes between the workers that are there, and tell them where it has changed."""
        there = [seat for seat in self._seats.values() if seat.phase != "out"]
        room = self._accounts.cache_room(self._rules, there)
        shares = cache_shares(room, {seat.model.name: seat.cache_limit for seat in there if seat.cache_limit})
        for seat in there:
            share = shares.get(seat.model.name, 0)
            if not is_worth_telling(seat.cache_share, share):
                continue
            if seat.phase == "loading":
                if seat.worker is None:  # which is told with its model
                    seat.cache_share = share
            elif seat.worker is not None and seat.worker.alive:
                seat.cache_share = share
                seat.worker.limit_cache(share)

    # ── doing ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, seat: Seat, phase: Phase, doing: Coroutine[None, None, None]) -> None:
        seat.phase = phase
        seat.task = asyncio.get_running_loop().create_task(doing)
        seat.task.add_done_callback(lambda task: self._never_began(seat, task))
        self._tell(seat.model.name)

    def _never_began(self, seat: Seat, task: asyncio.Task[None]) -> None:
        """A task that is cancelled before its first step cannot say so itself."""
        if task.cancelled() and seat.task is task:
            self._called_off(seat)
            self._act()

    def _called_off(self, seat: Seat) -> None:
        """Its load is not to be. Who waits is told, unless it is to be loaded differently."""
        name = seat.model.name
        if seat.next is seat.model:
            seat.refuse_waiting(ModelUnloaded(f"{name} was unloaded while it was loading", retry_after=1))
        self._is_out(seat)

    def _dismiss(self, seat: Seat) -> None:
        seat.dismissed = True
        if seat.phase == "in":
            self._see_off(seat)
        elif seat.phase == "loading" and seat.task is not None:
            seat.task.cancel()

    def _see_off(self, seat: Seat) -> None:
        assert seat.worker is not None, "it is there"
        self._begin(seat, "leaving", self._follow_out(seat, seat.worker))
        self._keep_spare(seat)

    async def _follow_out(self, seat: Seat, worker: WorkerProcess) -> None:
        await worker.unused()
        await worker.stop()
        record = self.records.of(worker.model)
        if worker.end:
            record.crashes[worker.end_cause] += 1
        elif worker.completed:
            seat.failures.succeeded()
        record.unloads += 1
        _log.info("unloaded", model=seat.model.name)
        self._accounts.changed()
        await self._look_at_memory()
        self._is_out(seat)
        self._act()

    async def _bring(self, seat: Seat) -> None:
        model, begun = seat.model, time.monotonic()
        record = self.records.of(model.name)
        _log.info("loading", model=model.name, **in_words(needs=seat.needs or {}))
        try:
            worker = await self._start_with_room(seat)
        except asyncio.CancelledError:
            self._called_off(seat)
        except PaddockError as error:
            seat.failures.failed(error.message, time.monotonic())
            record.load_failures[error.code] += 1
            _log.error("load failed", model=model.name, error=error.message)
            seat.refuse_waiting(error)
            self._is_out(seat)
        else:
            self._is_in(seat, worker, time.monotonic() - begun)
        self._act()

    async def _start_with_room(self, seat: Seat) -> WorkerProcess:
        """Should there turn out to be too little memory: once more, when those are gone whom nobody uses."""
        try:
            return await self._starter.start(seat)
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
            return await self._starter.start(seat)

    def _is_in(self, seat: Seat, worker: WorkerProcess, seconds: float) -> None:
        now = time.monotonic()
        self.records.of(seat.model.name).loaded(seconds, worker.info)
        seat.phase, seat.task = "in", None
        seat.loaded_at = seat.last_used = now
        seat.stays_until = now + max(self._rules.min_residence, _STAY_PER_LOAD * seconds)
        memory = in_words(estimated=seat.takes, measured=self._accounts.measure(seat))
        _log.info("loaded", model=seat.model.name, pid=worker.pid, seconds=round(seconds, 2), **memory)
        self._keep_spare(seat)
        if self._shown:
            worker.watch(on=True)
        self._share_cache()
        if seat.dismissed:
            self._see_off(seat)
            return
        for waiter in seat.waiting:
            if not waiter.done():
                waiter.set_result(worker)
        self._tell(seat.model.name)

    def _keep_spare(self, seat: Seat) -> None:
        """While there is a model that may be loaded next, a process is kept ready for it."""
        wanted = any(other.phase in ("out", "leaving") and other.next is not None for other in self._seats.values())
        if self._rules.spare_worker and wanted:
            self._starter.prepare(seat, at_once=seat.phase == "leaving")

    def _is_out(self, seat: Seat) -> None:
        name = seat.model.name
        seat.phase, seat.worker, seat.task, seat.dismissed, seat.granted = "out", None, None, False, {}
        seat.cache_share = 0
        self._share_cache()
        if seat.next is None:
            seat.refuse_waiting(ModelUnloaded(f"{name} is not served any more", param="model"))
            self._seats.pop(name, None)
        elif seat.next is not seat.model:
            seat.model, seat.failures = seat.next, Failures()
            # Whoever waits has been waiting for the old one: what the new one needs must be known before it is loaded.
            seat.needs = self._accounts.needs(seat.model) if seat.waiting else None
        self._tell(name)

    def _tell(self, name: str) -> None:
        for queue in self._watchers:
            if not queue.full():
                queue.put_nowait(name)
