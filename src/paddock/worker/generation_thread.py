"""The engine thread of a model that generates text: *receive → schedule → decode → commit → publish*."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty

from paddock.disk_cache import DiskCache, StateKey
from paddock.engine import Engine, PooledEngine, open_engine
from paddock.errors import NoCells, PaddockError
from paddock.scheduling import CacheCorrupted, CacheView, Job, Plan, Progress, Request, Scheduler, StepBudget
from paddock.types import Operation, Sampled, SlotView
from paddock.wire.messages import CacheContents, Delta, Slots, Stats, Step
from paddock.worker.answers import Answer
from paddock.worker.commands import (
    Add,
    Begun,
    Call,
    ClearCache,
    Command,
    Ended,
    Explained,
    Failed,
    Flush,
    Flushed,
    Remove,
    Report,
    ReportCache,
    Resize,
    Visit,
)
from paddock.worker.disk_io import DiskIO
from paddock.worker.engine_thread import EngineThread
from paddock.worker.logs import log_failure, log_warning
from paddock.worker.pooled_steps import PooledSteps
from paddock.worker.slots import slot_state, slot_view

_EMBEDDINGS_IDLE_SECONDS = 60.0
"""The context for embeddings is freed when the worker has been idle for so long."""
# A GPU computes `n_ubatch` tokens at a time, so a chunk of a few of them costs no more per token than a large one.
_PAUSE_ON_GPU = 0.12

# Set to 1 in the environment of the server: workers check the counters of their cache whenever they are idle.
CHECK_CACHE = "PADDOCK_CHECK_CACHE"


@dataclass(slots=True, frozen=True)
class Snapshot:
    """State of the engine thread, for other threads."""

    slots: list[SlotView]
    queued: int
    slot_of: dict[int, int]
    """Running sequence → its slot."""
    cache: CacheView
    cells_used: int
    cells_idle: int
    stored_bytes: int


class GenerationThread(EngineThread):
    engine: Engine
    embeddings: PooledEngine
    """For requests that want embeddings of a model that generates."""
    _scheduler: Scheduler

    def snapshot(self, max_spans: int) -> Snapshot:
        """Call this when the engine is open, from any other thread. No step begins or ends meanwhile."""
        with self.state_lock:
            scheduler, slots = self._scheduler, list(self._scheduler.slots)
            return Snapshot(
                [slot_view(slot) for slot in slots],
                scheduler.queued + self._inbox.qsize(),  # with requests that arrived during this step
                {slot.request.sequence: slot.id for slot in slots if slot.busy and slot.request is not None},
                scheduler.cache.view(max_spans),
                cells_used=scheduler.cache.used - scheduler.cache.idle_cells,
                cells_idle=scheduler.cache.idle_cells,
                stored_bytes=scheduler.cache.stored_bytes,
            )

    def _step_budget(self) -> StepBudget:
        budget = StepBudget(usual=self._options.n_ubatch, unified=self.engine.shape.unified)
        if not self.engine.is_cpu_bound:
            budget.floor_seconds = _PAUSE_ON_GPU
        return budget

    def _open(self) -> None:
        engine = self.engine = open_engine(self._model_path, self._options, self._report_progress)
        self._scheduler = Scheduler(
            shape=engine.shape,
            n_ctx=engine.info.n_ctx,
            slots=engine.info.n_slots,
            n_batch=engine.n_batch,
            end_tokens=engine.vocab.end_tokens,
            continuous=self._options.cont_batching,
            exact_batch=engine.info.exact_batch,
            draft_slots=engine.info.draft_slots,
            budget=self._step_budget(),
        )
        self._disk = self._open_disk()
        self.embeddings = engine.embeddings()
        self._pooled = PooledSteps(self.embeddings, self.counters, self._post, self._send)
        self._visits: list[Visit] = []
        self._last_step = -math.inf
        """When the last step ended."""
        self._checks_cache = os.environ.get(CHECK_CACHE, "") not in ("", "0")

    def _open_disk(self) -> DiskIO | None:
        folder, engine = self._options.cache_disk, self.engine
        if not folder:
            return None
        key = StateKey(engine.origin, _payload(engine))
        tier = self._scheduler.open_disk(key)
        if tier is None:
            log_warning(
                "cache_disk (--cache-disk) has no effect for this model: its states cannot be divided, or have an "
                "unknown format"
            )
            return None
        if not engine.shape.ram_bytes:
            log_warning("no prefixes are kept on disk, because there is no host memory for them: see memory_limit")
        name = os.path.basename(self._model_path)
        cache = DiskCache(folder, self._options.cache_disk_bytes, key, model=name, log=log_warning)
        return DiskIO(engine, self._scheduler, tier, cache, self.tell)

    @property
    def _is_idle(self) -> bool:
        return self._scheduler.is_idle and self._pooled.is_idle

    def _rest(self) -> None:
        super()._rest()
        self.embeddings.release()

    @property
    def _write_back_delay(self) -> float:
        """A client often sends its next request at once."""
        return max(self._scheduler.write_back_delay - self._silence, 0.0) if self._scheduler.has_time else 0.0

    @property
    def _silence(self) -> float:
        """For how many seconds no request has run."""
        return time.perf_counter() - self._last_step

    def _receive(self) -> None:
        """Raises `CacheCorrupted`, which ends the worker, if the cache's counters or the engine's cells are wrong."""
        if self._checks_cache and self._is_idle:
            self._scheduler.check_idle()
            used, resident = set(self.engine.used_sequences()), set(self._scheduler.cache.resident)
            if used != resident:
                raise CacheCorrupted(f"no request runs, but the sequences {used} have cells instead of {resident}")
        super()._receive()
        self._await_others()

    def _await_others(self) -> None:
        """Wait a moment for the other requests of a burst, if that is worth it."""
        begun, waited = time.perf_counter(), 0.0
        with suppress(Empty):
            while (patience := self._scheduler.patience(waited, is_coming=self._is_expecting())) > 0:
                self._handle_all(self._next(patience))
                waited = time.perf_counter() - begun

    def _stats(self, now: float) -> Stats:
        return self.counters.stats(self._scheduler, now)

    def _handle(self, command: Command) -> None:
        scheduler = self._scheduler
        match command:
            case Add(Request() as request):
                scheduler.add(request)
            case Add(Job() as job):
                self._patience = _EMBEDDINGS_IDLE_SECONDS
                self._pooled.add(job)
            case Remove(id, index):
                scheduler.remove(id, index)
                self._pooled.remove(id)
            case Report(id):
                n_ctx, now = self.engine.info.n_ctx, time.perf_counter()
                states = [slot_state(slot, n_ctx=n_ctx, now=now) for slot in scheduler.slots]
                self._send(Slots(id, states, scheduler.queued))
            case ReportCache(id):
                self._send(CacheContents(id, scheduler.cache.contents()))
            case ClearCache(id, tenant):
                self._clear_cache(id, tenant)
            case Visit():
                self._visits.append(command)
            case Resize(ram_bytes):
                scheduler.cache.resize(ram_bytes)
            case Call(run):
                run()
                self.counters.cache_changed()
            case Flush(seconds):
                self._flush(time.monotonic() + seconds)
                self._post(Flushed())

    def _clear_cache(self, id: int, tenant: str | None) -> None:
        def answer() -> None:
            self._send(CacheContents(id, self._scheduler.cache.contents()))

        self._scheduler.cache.clear(tenant)
        self.counters.cache_changed()
        if self._disk is None:
            answer()
        else:
            self._disk.clear(tenant, answer)

    def _step(self) -> None:
        if self._visits:
            self._run_ready_visits()
        self._pooled.step(self._computing)  # in turns with the steps of answers
        if self._disk is not None:
            self._disk.read_more()
        self._compute()
        if self._disk is not None:
            self._disk.read_more()  # the rest of a prefix, when its first files are copied
            self._disk.write_more(is_busy=self._scheduler.running > 0)

    def _compute(self) -> None:
        scheduler = self._scheduler
        plan = scheduler.schedule(self._silence)
        if plan is None:
            return
        begun = time.perf_counter()
        self._apply(plan.operations)
        if not plan.spans:
            self.counters.cache_changed()
            return
        has_prompts = len(plan.spans) > plan.decodes
        if has_prompts:
            self._start_prompts(plan, begun)
        with self._computing():
            computing = time.perf_counter()
            results = self._decode(plan)
        if results is None:
            return
        now = self._last_step = time.perf_counter()
        # Without cache operations and the wait for the CPU lock, which say nothing about the cost of a token.
        steps = scheduler.commit(plan, results, now - computing)
        self.counters.step(plan, now - begun)
        self.counters.drafts(results)
        deltas: list[Delta] = []
        if has_prompts:
            progress = (request.answer.prompt_progress(request, now) for request in plan.requests)
            deltas = [delta for delta in progress if delta is not None]
        self._publish(deltas, steps, now)

    def _apply(self, operations: list[Operation]) -> None:
        if self._disk is not None:
            self._disk.before(operations)
        self._scheduler.record_copies(self.engine.apply(operations))
        operations.clear()  # they hold what was read from disk
        if self._disk is not None:
            self._disk.after()

    def _flush(self, until: float) -> None:
        """Before the process ends: write what is worth keeping. First what host memory has, then what cells have."""
        if self._disk is None:
            return
        for slot in self._scheduler.slots:
            if slot.busy and slot.request is not None:
                self._scheduler.remove(slot.request.id)
        self._disk.begin_flush()
        self._write_all(self._disk, until)
        self._scheduler.write_back()
        self._apply(self._scheduler.cache.take_operations())
        self._write_all(self._disk, until)

    def _write_all(self, disk: DiskIO, until: float) -> None:
        while (left := until - time.monotonic()) > 0:
            disk.write_more(is_busy=False)
            if disk.is_written:
                return
            with suppress(Empty):
                command = self._inbox.get(timeout=left)
                if isinstance(command, Call):
                    command.run()

    def _start_prompts(self, plan: Plan, now: float) -> None:
        """The first prefill step of some requests begins: tell those that want to know what is cached already."""
        deltas: list[Delta] = []
        for request in plan.requests:
            if (waited := request.answer.clock.begin(now)) is not None:
                self.counters.started(request, waited)
                explanation = request.answer.explanation
                if explanation is not None and explanation.begin(request):
                    self._post(Begun(explanation))
                if (delta := request.answer.prompt_progress(request, now)) is not None:
                    deltas.append(delta)
        if deltas:
            self._send(Step(deltas))

    def _decode(self, plan: Plan) -> list[Sampled | None] | None:
        """Run the step. None if the engine had no cells for it: it is planned again with fewer requests."""
        try:
            return self.engine.decode(plan.spans, exact=plan.exact, adapters=plan.adapters)
        except NoCells as error:
            log_warning("no free KV cells for this step; one request is requeued", reason=error.message)
            too_large = self._scheduler.handle_no_cells(plan)
            if too_large is not None:
                self._fail(too_large, error)
            return None

    def _run_ready_visits(self) -> None:
        """Before the next step is scheduled, so that a slot that became free is not taken by a request first."""
        scheduler = self._scheduler
        waiting, self._visits = self._visits, []
        for visit in waiting:
            if visit.slot is None or scheduler.slots.is_free(visit.slot):
                scheduler.write_back()
                self._apply(scheduler.cache.take_operations())
                visit.run(scheduler)
            else:
                self._visits.append(visit)

    def _publish(self, deltas: list[Delta], steps: list[Progress], now: float) -> None:
        """Make deltas of the new tokens and send them, on this thread: a handover to another one takes longer."""
        arrived: dict[Answer, tuple[float | None, int]] = {}
        explained: list[Explained] = []
        for progress in steps:
            request, answer = progress.request, progress.request.answer
            if answer.is_stopped:
                continue  # an earlier token of this step ended the answer; the rest was drafted
            if progress.error is not None:
                self._fail(request, progress.error)
                continue
            newest = answer.clock.newest
            try:
                delta, forced = answer.advance(progress, now), answer.forced_tokens()
            except Exception as error:  # fails this request only
                self._fail(request, _decode_error(error))
                continue
            if progress.token is not None or progress.finish == "stop":
                before, count = arrived.get(answer, (newest, 0))
                arrived[answer] = before, count + 1
            if newest is None and answer.clock.newest is not None:
                self.counters.prompt_done(answer.clock.timings(now).prompt)
            if delta is not None and delta.finish is not None and answer.request.cache_report:
                explained.append(Explained(delta, answer.explanation))
            elif delta is not None:
                deltas.append(delta)
            if forced:
                request.sampler.force(forced)
            request.sampler.step_limit = answer.step_limit
            if answer.is_stopped and progress.finish is None:
                self._scheduler.remove(request.id, request.index)
            if answer.is_stopped or progress.finish is not None:
                self._post(Ended(request.id, request.index, answer.explanation))
        self.counters.tokens(Counter(arrived.values()), now)
        if deltas:
            self._send(Step(deltas))
        for event in explained:  # after the other deltas of the same answers
            self._post(event)

    def _fail(self, request: Request, error: PaddockError) -> None:
        """End all answers of a request with this error. Other requests continue."""
        self._scheduler.remove(request.id)
        request.answer.fail()
        if error.__cause__ is not None:
            log_failure("a request failed", error.__cause__)
        self._post(Failed(request.id, error))


def _decode_error(error: Exception) -> PaddockError:
    failure = PaddockError(f"cannot decode the answer: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _payload(engine: Engine) -> str:
    """What a file of the disk cache has. A checkpoint fits only contexts with as many streams."""
    if engine.shape.reuse == "prefix":
        return "rows"
    return "state, unified" if engine.shape.unified else f"state, {engine.info.n_slots} streams"
