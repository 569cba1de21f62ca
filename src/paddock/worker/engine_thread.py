"""The thread that runs *receive → schedule → decode → commit*, and alone touches the llama context."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from queue import Empty

from paddock.engine import Engine, open_engine
from paddock.errors import NoCells, PaddockError
from paddock.scheduling import CacheCorrupted, CacheView, Plan, Progress, Request, Scheduler, StepBudget
from paddock.types import EngineOptions, Sampled, SlotView
from paddock.wire import Delta, Slots, Stats, Step
from paddock.worker.cpu_lock import CpuLock
from paddock.worker.logs import log_failure, log_warning
from paddock.worker.native_thread import Died, NativeThread, Opening
from paddock.worker.slots import slot_states, slot_views

# Set to 1 in the environment of the server: workers check the counters of their cache whenever they are idle.
CHECK_CACHE = "PADDOCK_CHECK_CACHE"

# ── what the engine thread is told ───────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True, frozen=True)
class Add:
    request: Request


@dataclass(slots=True, frozen=True)
class Remove:
    id: int
    index: int | None = None
    """One answer of several; all of them unless given."""


@dataclass(slots=True, frozen=True)
class Report:
    """Say how the slots are."""

    id: int


@dataclass(slots=True, frozen=True)
class Visit:
    """Do something quick with the cache between two steps: the next two, or as soon as this slot is free."""

    slot: int | None
    errand: Callable[[Engine, Scheduler], None]


@dataclass(slots=True, frozen=True)
class Resize:
    """Keep no more host memory than this for prefixes."""

    ram_bytes: int


Command = Add | Remove | Report | Visit | Resize

# ── what it tells ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True, frozen=True)
class Opened:
    engine: Engine


@dataclass(slots=True, frozen=True)
class Ended:
    """An answer is complete and has been sent."""

    id: int
    index: int


@dataclass(slots=True, frozen=True)
class Failed:
    """A request cannot be answered to the end; nothing more comes of it."""

    id: int
    error: PaddockError


Event = Opening | Opened | Ended | Failed | Died


@dataclass(slots=True, frozen=True)
class Sight:
    """What another thread sees of it."""

    slots: list[SlotView]
    queued: int
    places: dict[int, int]
    """The slots of the sequences that run."""
    cache: CacheView
    cells_used: int
    stored_bytes: int


class EngineThread(NativeThread[Command]):
    """Generates text. Answers go out through `send`, which never blocks either."""

    def __init__(
        self,
        model_path: str,
        options: EngineOptions,
        cpu_lock: CpuLock,
        post: Callable[[Event], None],
        send: Callable[[Step | Slots | Stats], None],
        confine: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(post, confine)
        self._model_path = model_path
        self._options = options
        self._cpu_lock = cpu_lock
        self._send = send
        self._visits: list[Visit] = []
        self._scheduler: Scheduler | None = None
        self._checks_cache = os.environ.get(CHECK_CACHE, "") not in ("", "0")

    def look(self, most_spans: int) -> Sight:
        """How things are, for the other threads, once it is open. No step can begin or end meanwhile."""
        with self.deciding:
            assert self._scheduler is not None, "it is open"
            scheduler, slots = self._scheduler, list(self._scheduler.slots)
            return Sight(
                slot_views(slots),
                scheduler.queued + self._inbox.qsize(),  # those who came during this step wait too
                {slot.request.sequence: slot.id for slot in slots if slot.busy and slot.request is not None},
                scheduler.cache.view(most_spans),
                cells_used=scheduler.cells - scheduler.cache.free,
                stored_bytes=scheduler.cache.stored_bytes,
            )

    def _serve(self) -> None:
        engine = open_engine(self._model_path, self._options, self._report_progress)
        self._is_open = True
        self._post(Opened(engine))
        self._run(engine)

    def _run(self, engine: Engine) -> None:
        scheduler = self._scheduler = Scheduler(
            shape=engine.shape,
            n_ctx=engine.info.n_ctx,
            slots=engine.info.n_slots,
            n_batch=engine.n_batch,
            end_tokens=engine.vocab.end_tokens,
            continuous=self._options.cont_batching,
            exact_batch=engine.info.together,
            drafts_for=engine.info.drafts_for,
            budget=StepBudget(largest=engine.n_batch, usual=self._options.n_ubatch),
        )
        while True:
            self._receive(engine, scheduler)
            if self._visits:
                self._let_in(engine, scheduler)
            plan = scheduler.schedule()
            if plan is None:
                continue
            begun = time.perf_counter()
            engine.apply(plan.operations)
            if not plan.spans:
                self.counters.tidied()
                continue
            if len(plan.spans) > plan.decodes:
                for request in plan.requests:
                    if (waited := request.answer.clock.begin(begun)) is not None:
                        self.counters.began(request, waited)
            with self._in_turn(self._cpu_lock.hold() if engine.takes_turns else nullcontext()):
                computing = time.perf_counter()
                results = self._decode(engine, scheduler, plan)
            if results is None:
                continue
            now = time.perf_counter()
            # What was copied before, and the wait for a turn, say nothing of what a token takes.
            steps = scheduler.commit(plan, results, now - computing)
            self.counters.step(plan, now - begun)
            if engine.info.drafts_for:
                self.counters.drafts(results)
            self._publish(scheduler, self._progress(plan, now), steps, now)
            if self.counters.due(now):
                self._send(self.counters.stats(scheduler, now))

    def _decode(self, engine: Engine, scheduler: Scheduler, plan: Plan) -> list[Sampled | None] | None:
        """Run the step. None if there was no room for it: it is planned again, for fewer requests."""
        try:
            return engine.decode(plan.spans, exact=plan.exact, adapters=plan.adapters)
        except NoCells as error:
            log_warning("no room for a step: a request steps back", reason=error.message)
            hopeless = scheduler.handle_no_cells(plan)
            if hopeless is not None:
                self._fail(scheduler, hopeless, error)
            return None

    def _let_in(self, engine: Engine, scheduler: Scheduler) -> None:
        """Slots that the last step left free are not taken again before those who wait for them had their turn."""
        waiting, self._visits = self._visits, []
        for visit in waiting:
            if visit.slot is None or scheduler.slots.is_free(visit.slot):
                scheduler.flush()
                engine.apply(scheduler.cache.take_operations())  # what the last steps left to be done
                visit.errand(engine, scheduler)
            else:
                self._visits.append(visit)

    def _progress(self, plan: Plan, now: float) -> list[Delta]:
        """What those are told who want to know how far their prompt has been read."""
        if len(plan.spans) == plan.decodes:
            return []
        return [delta for request in plan.requests if (delta := request.answer.read(request, now)) is not None]

    def _publish(self, scheduler: Scheduler, deltas: list[Delta], steps: list[Progress], now: float) -> None:
        """Tokens → words → wire. Here, because handing them to another thread takes longer than doing it."""
        before: dict[float | None, int] = {}
        for progress in steps:
            request, answer = progress.request, progress.request.answer
            if answer.stopped:
                continue  # by an earlier token of the same step: what follows was guessed, and is not wanted
            if progress.error is not None:
                self._fail(scheduler, request, progress.error)
                continue
            newest = answer.clock.newest
            try:
                delta, dictated = answer.advance(progress, now), answer.dictation()
            except Exception as error:  # of this request alone, whatever it is
                self._fail(scheduler, request, _unreadable(error))
                continue
            if progress.token is not None or progress.finish == "stop":
                before[newest] = before.get(newest, 0) + 1
            if newest is None and answer.clock.ticking:
                self.counters.read(answer.clock.timings(now).prompt)
            if delta is not None:
                deltas.append(delta)
            if dictated:
                request.sampler.force(dictated)
            if answer.stopped and progress.finish is None:
                scheduler.remove(request.id, request.index)
            if answer.stopped or progress.finish is not None:
                self._post(Ended(request.id, request.index))
        self.counters.tokens(before, now)
        if deltas:
            self._send(Step(deltas))

    def _fail(self, scheduler: Scheduler, request: Request, error: PaddockError) -> None:
        """End a request, all of its answers, with this error; the others go on."""
        scheduler.remove(request.id)
        request.answer.fail()
        if error.__cause__ is not None:
            log_failure("a request failed", error.__cause__)
        self._post(Failed(request.id, error))

    def _receive(self, engine: Engine, scheduler: Scheduler) -> None:
        """Take every waiting command; with nothing to run, sleep until one comes."""
        idle = scheduler.is_idle
        if idle and self._checks_cache:
            _check_cache(engine, scheduler)
        if idle and self.counters.due(now := time.perf_counter(), idle=True):
            self._send(self.counters.stats(scheduler, now))
        try:
            command = self._next(wait=idle)
            while True:
                match command:
                    case Add(request):
                        scheduler.add(request)
                    case Remove(id, index):
                        scheduler.remove(id, index)
                    case Report(id):
                        states = slot_states(scheduler.slots, n_ctx=engine.info.n_ctx, now=time.perf_counter())
                        self._send(Slots(id, states, scheduler.queued))
                    case Visit():
                        self._visits.append(command)
                    case Resize(ram_bytes):
                        scheduler.cache.resize(ram_bytes)
                command = self._inbox.get_nowait()
        except Empty:
            return


def _check_cache(engine: Engine, scheduler: Scheduler) -> None:
    """Raise `CacheCorrupted`, which ends the worker, if the cache's counters or the engine's cells are wrong."""
    scheduler.check_idle()
    if used := engine.used_sequences():
        raise CacheCorrupted(f"no request runs, but the sequences {used} have cells")


def _unreadable(error: Exception) -> PaddockError:
    failure = PaddockError(f"the answer could not be read: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
