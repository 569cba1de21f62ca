"""The engine thread of a model that generates text: *receive → schedule → submit → collect → commit → publish*.

Where a GPU computes, the results of a step are published after the next one is submitted, while the GPU computes it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty
from typing import Any

from paddock.disk_cache import DiskCache, StateKey
from paddock.engine import Engine, PooledEngine, open_engine
from paddock.errors import NoCells
from paddock.scheduling import CacheCorrupted, CacheView, Job, Request, Scheduler, StepBudget
from paddock.types import EngineOptions, Operation, Restore, Sampled, SlotView
from paddock.wire.messages import CacheContents, Delta, Slots, Stats, Step
from paddock.worker.commands import (
    Add,
    Begun,
    Call,
    ClearCache,
    Command,
    Event,
    Flush,
    Flushed,
    Remove,
    Report,
    ReportCache,
    Resize,
    Visit,
)
from paddock.worker.cpu_lock import CpuLock
from paddock.worker.disk_io import DiskIO
from paddock.worker.engine_thread import EngineThread
from paddock.worker.logs import log_warning
from paddock.worker.media_steps import MediaSteps
from paddock.worker.pooled_steps import PooledSteps
from paddock.worker.publisher import Publisher
from paddock.worker.running_step import RunningStep
from paddock.worker.slots import slot_state, slot_view
from paddock.worker.step_times import StepTimes

_EMBEDDINGS_IDLE_SECONDS = 60.0
# A step that waited so long for the cores waited for a step of another model.
_SHARED_SECONDS = 0.01
"""The context for embeddings is freed when the worker has been idle for so long."""
# A GPU computes `n_ubatch` tokens at a time, so a chunk of a few of them costs no more per token than a large one.
_PAUSE_ON_GPU, _STRETCH_ON_GPU = 0.12, 16.0

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

    def __init__(
        self,
        model_path: str,
        options: EngineOptions,
        cpu_lock: CpuLock,
        post: Callable[[Event], None],
        send: Callable[[Any], None],
        confine: Callable[[], None] = lambda: None,
        is_expecting: Callable[[], bool] = lambda: False,
        *,
        overlaps: bool | None = None,
    ) -> None:
        """`overlaps`: publish the results of a step while the next one is computed. None: if a GPU computes it."""
        super().__init__(model_path, options, cpu_lock, post, send, confine, is_expecting)
        self._wants_overlap = overlaps
        self._publisher = Publisher(self.counters, self._remove, post, send)
        self._running_step: RunningStep | None = None
        self._times = StepTimes()

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
        shape, on_cpu = self.engine.shape, self.engine.is_cpu_bound
        budget = StepBudget(
            usual=self._options.n_ubatch, unified=shape.unified, pads=on_cpu and shape.reuse == "prefix"
        )
        if not on_cpu:
            budget.floor_seconds, budget.stretch = _PAUSE_ON_GPU, _STRETCH_ON_GPU
            budget.pass_rows = min(self._options.n_ubatch, self.engine.n_batch)
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
        media = engine.media
        self._media = None if media is None else MediaSteps(media, self._scheduler, self._publisher.fail)
        self._visits: list[Visit] = []
        self._overlaps = not engine.is_cpu_bound if self._wants_overlap is None else self._wants_overlap
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
        limit = self._options.cache_disk_bytes
        cache = DiskCache(folder, limit, key, model=self._model_path, log=log_warning)
        return DiskIO(engine, self._scheduler, tier, cache, self.tell)

    @property
    def _is_idle(self) -> bool:
        return self._scheduler.is_idle and self._pooled.is_idle and not self._encodes_media

    @property
    def _encodes_media(self) -> bool:
        return self._media is not None and not self._media.is_idle

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
                self._publisher.publish()
                self._handle_all(self._next(patience))
                waited = time.perf_counter() - begun

    def _stats(self, now: float) -> Stats:
        if self.engine.media is not None:
            self.counters.encoded(self.engine.media.take_encode_seconds())
        return self.counters.stats(self._scheduler, now)

    def _handle(self, command: Command) -> None:
        scheduler = self._scheduler
        if not (isinstance(command, Add) and isinstance(command.request, Request)):
            self._publisher.publish()  # before it looks at requests or removes one
        match command:
            case Add(Request() as request):
                if not request.batch:
                    scheduler.notice_interactive()
                if not request.media or self._media is None or not self._media.hold(request):
                    scheduler.add(request)
            case Add(Job() as job):
                if not job.batch:
                    scheduler.notice_interactive()
                self._patience = _EMBEDDINGS_IDLE_SECONDS
                self._pooled.add(job)
            case Remove(id, index):
                scheduler.remove(id, index)
                if self._media is not None:
                    self._media.remove(id, index)
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
        try:
            self._take_turns()
        except BaseException:
            self._publisher.publish()  # what the step before gave
            raise

    def _take_turns(self) -> None:
        if self._visits:
            self._run_ready_visits()
        begun = time.perf_counter()
        self._pooled.step(self._computing)  # in turns with the steps of answers
        if self._media is not None and self._encodes_media:
            self._publisher.publish()  # it may take long
            self._media.step(self._computing)
        self._times.other_work(time.perf_counter() - begun)
        if self._disk is not None:
            self._disk.read_more()
        self._compute()
        if self._disk is not None:
            self._disk.read_more()  # the rest of a prefix, when its first files are copied
            self._disk.write_more(is_busy=self._scheduler.running > 0)

    def _compute(self) -> None:
        plan = self._scheduler.schedule(self._silence)
        if plan is None or not plan.spans:
            self._publisher.publish()
            if plan is not None:
                self._count_restores(self._apply(plan.operations))
                self.counters.cache_changed()
            return
        step = self._running_step = RunningStep(plan, time.perf_counter())
        if plan.operations or step.has_prompts:
            self._publisher.publish()  # copies and prompts would delay it
        restored = self._apply(plan.operations)
        if step.has_prompts:
            self._start_prompts(step, sum(restored.values()))
        self._count_restores(restored)
        ready = time.perf_counter()
        try:
            with self._computing():
                computing = time.perf_counter()
                self._times.other_work(computing - ready)  # of another model, on the same cores
                if computing - ready > _SHARED_SECONDS:
                    self._scheduler.notice_interactive()
                self.engine.submit(plan.spans, exact=plan.exact, adapters=plan.adapters)
                if not self._publisher.is_empty:
                    with self.state_lock:
                        self._publisher.publish()
                results = self.engine.collect()
        except NoCells as error:
            self._handle_no_cells(step, error)
            return
        self._commit(step, results, computing)
        if not self._may_publish_later:
            self._publisher.publish()

    @property
    def _may_publish_later(self) -> bool:
        """Whether a GPU will compute the next step at once. Then the results of this step are published meanwhile."""
        return (
            self._overlaps
            and self._scheduler.is_generating
            and self._pooled.is_idle
            and not self._visits
            and not self._encodes_media
        )

    def _commit(self, step: RunningStep, results: list[Sampled | None], computing: float) -> None:
        """Record what the step gave. `computing` is when its computation began."""
        plan, now = step.plan, time.perf_counter()
        self._last_step = now
        # Without cache operations and the wait for the CPU lock, which say nothing about the cost of a token.
        steps = self._scheduler.commit(plan, results, now - computing, has_ended=step.has_ended)
        self._end_step(step)
        self._count_time(step, now - computing)
        self.counters.step(plan, now - step.begun)
        self.counters.drafts(plan, step.kept(results))
        deltas: list[Delta] = []
        if step.has_prompts:
            progress = (request.answer.prompt_progress(request, now) for request in plan.requests)
            deltas = [delta for delta in progress if delta is not None]
        self._publisher.keep(deltas, steps, now)

    def _count_time(self, step: RunningStep, seconds: float) -> None:
        """Each prompt takes the part of a step that its tokens are."""
        plan, prompts = step.plan, step.prompts
        per_token = seconds / max(sum(len(span.tokens) for span in plan.spans), 1) if prompts else 0.0
        for clock, count in prompts:
            clock.computed(per_token * count)
        share = per_token * sum(count for _, count in prompts) / seconds if seconds else 0.0
        self._times.step((plan.exact, plan.adapters), seconds, prompt_share=share)

    def _remove(self, id: int, index: int | None = None) -> None:
        """Remove a request or one of its answers, after the step that uses its cells."""
        if self._running_step is None:
            self._scheduler.remove(id, index)
        else:
            self._running_step.removals.append((id, index))

    def _end_step(self, step: RunningStep) -> None:
        self._running_step = None
        for id, index in step.removals:
            self._scheduler.remove(id, index)

    def _apply(self, operations: list[Operation]) -> dict[int, float]:
        """Returns, for each sequence whose prefix was restored, how many seconds that took."""
        if self._disk is not None:
            self._disk.before(operations)
        restored: dict[int, float] = {}
        for operation in operations:
            if isinstance(operation, Restore):
                size = sum(piece.length for piece in operation.pieces)
                restored[operation.sequence] = restored.get(operation.sequence, 0.0) + size
        copies = self.engine.apply(operations)
        self._scheduler.record_copies(copies)
        if restored:
            seconds = sum(copied.seconds for copied in copies if copied.kind == "restore")
            self._times.other_work(seconds)
            total = max(sum(restored.values()), 1.0)
            restored = {sequence: seconds * size / total for sequence, size in restored.items()}
        operations.clear()  # they hold what was read from disk
        if self._disk is not None:
            self._disk.after()
        return restored

    def _count_restores(self, restored: Mapping[int, float]) -> None:
        for slot in self._scheduler.slots if restored else ():
            request = slot.request
            if slot.busy and request is not None and request.sequence in restored:
                request.answer.clock.restored(restored[request.sequence])

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

    def _start_prompts(self, step: RunningStep, copied: float) -> None:
        """The first prefill step of some requests begins: tell those that want to know what is cached already."""
        plan, now = step.plan, step.begun
        group = self._times.group((plan.exact, plan.adapters))
        deltas: list[Delta] = []
        for span, request in zip(plan.spans, plan.requests, strict=True):
            waited = request.answer.clock.begin(now)
            if not request.is_generating:
                request.answer.clock.prefill(now, group, copied)
                step.prompts.append((request.answer.clock, len(span.tokens)))
            if waited is not None:
                self.counters.started(request, waited)
                explanation = request.answer.explanation
                if explanation is not None and explanation.begin(request):
                    self._post(Begun(explanation))
                if (delta := request.answer.prompt_progress(request, now)) is not None:
                    deltas.append(delta)
        if deltas:
            self._send(Step(deltas))

    def _handle_no_cells(self, step: RunningStep, error: NoCells) -> None:
        """The engine had no cells for the step: it is planned again with fewer requests."""
        log_warning("no free KV cells for this step; one request is requeued", reason=error.message)
        too_large = self._scheduler.handle_no_cells(step.plan)
        self._publisher.publish()
        self._end_step(step)
        if too_large is not None and not step.has_ended(too_large):
            self._publisher.fail(too_large, error)

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


def _payload(engine: Engine) -> str:
    """What a file of the disk cache has. A checkpoint fits only contexts with as many streams."""
    if engine.shape.reuse == "prefix":
        return "rows"
    return "state, unified" if engine.shape.unified else f"state, {engine.info.n_slots} streams"
