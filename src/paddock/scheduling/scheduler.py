"""What goes into the next step: pure decisions on token ids, without a model, a clock or a socket."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from paddock.disk_cache import StateKey
from paddock.scheduling.admission import Admission
from paddock.scheduling.budget import StepBudget
from paddock.scheduling.cache import Cache, CacheCorrupted
from paddock.scheduling.checkpoint_cache import CheckpointCache
from paddock.scheduling.checkpoint_disk import CheckpointDiskTier
from paddock.scheduling.chunks import PrefillChunks
from paddock.scheduling.disk_tier import DiskTier, Read
from paddock.scheduling.extra_tokens import ExtraTokens
from paddock.scheduling.layout import Layout, StreamLayout, UnifiedLayout
from paddock.scheduling.plan import Plan, exact_chunk, make_span
from paddock.scheduling.prefix_cache import PrefixCache
from paddock.scheduling.prices import Prices
from paddock.scheduling.request import Progress, Request
from paddock.scheduling.sharing import Sharing, SnapshotSharing, namespace, reusable
from paddock.scheduling.slots import Slots
from paddock.scheduling.snapshot_cache import SnapshotCache
from paddock.scheduling.speculation import Speculation
from paddock.scheduling.step_groups import StepGroups
from paddock.scheduling.tile_wait import TileWait
from paddock.types import CacheShape, Copied, FinishReason, Sampled, Span

# Beside steps, write-back rests so many times as long as it takes: it delays what others wait for.
_REST = 9.0
# Lines of batches get longer steps after so many seconds of computing without an interactive request.
_QUIET_SECONDS = 60.0


class Scheduler:
    """Requests wait in one queue, run in slots, and share every step that they can share.

    A step holds the next token of all generating requests, then prompt chunks up to the budget. When unified cells run
    out, the youngest request goes back to the queue and continues later.
    """

    def __init__(
        self,
        *,
        shape: CacheShape,
        n_ctx: int,
        slots: int,
        n_batch: int,
        end_tokens: frozenset[int],
        continuous: bool = True,
        exact_batch: int = 1,
        draft_slots: int = 0,
        budget: StepBudget | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        self._shape = shape
        self._n_ctx = n_ctx
        self._n_batch = n_batch
        self._end_tokens = end_tokens
        self._exact_batch = exact_batch
        self._budget = budget or StepBudget(unified=shape.unified)
        self.prices = Prices()
        self._running: list[Request] = []
        self.cache, self._sharing = _cache_and_sharing(shape, self.prices, self._running)
        layout = UnifiedLayout if shape.unified else StreamLayout
        self._layout: Layout = layout(self.cache, self._sharing, shape, slots, self._running)
        self.slots = Slots(slots, self.cache)
        self._admission = Admission(self._layout, self.slots, continuous=continuous)
        self._queue = self._admission.queue
        self._extra = ExtraTokens(
            shape,
            speculation or Speculation(),
            self._budget,
            end_tokens=end_tokens,
            n_ctx=n_ctx,
            draft_slots=draft_slots,
        )
        self._computed_media = False
        """The last step computed an image. The next one is for text, if any waits."""
        self.disk: DiskTier | None = None
        self._groups = StepGroups(exact_batch)
        self._chunks = PrefillChunks(self._budget, self._queue)
        self._tile_wait = TileWait(self._budget)
        self._last_interactive = -math.inf
        """The time that had been spent in steps when somebody last waited for one: see `notice_interactive`."""
        self._last_write_back = 0.0
        """The time that had been spent in steps when the last part was written back."""

    @property
    def is_idle(self) -> bool:
        return self.has_time and self.cache.is_written_back

    @property
    def has_time(self) -> bool:
        """Whether no request runs or waits. Resident sequences may still have to be copied to host memory."""
        return not self._running and not self._queue and not self.cache.has_operations

    @property
    def is_generating(self) -> bool:
        """Whether all running requests generate, and none is deterministic: the next step is short, and computes no
        prompt unless another request is admitted.
        """
        return bool(self._running) and all(
            request.is_generating and not request.deterministic for request in self._running
        )

    @property
    def write_back_delay(self) -> float:
        """How many seconds nothing must run before the next part is copied to host memory."""
        return max(self._layout.write_back_delay, self.prices.silence_before_save(self.cache.next_write_back))

    @property
    def queued(self) -> int:
        return len(self._queue) + (len(self.disk.waiting) if self.disk is not None else 0)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def cells(self) -> int:
        return self._shape.cells

    @property
    def bytes_per_token(self) -> int:
        return self._shape.bytes_per_token

    @property
    def preemptions(self) -> int:
        return self._admission.preemptions

    def open_disk(self, key: StateKey) -> DiskTier | None:
        """Add the third tier. None: the model's states cannot be divided, or have an unknown format."""
        if isinstance(self.cache, CheckpointCache):
            self.disk = CheckpointDiskTier(self.cache, self._shape, self.prices, key)
        elif isinstance(self.cache, PrefixCache) and self._shape.bytes_per_token:
            self.disk = DiskTier(self.cache, self._shape, self.prices, key)
        return self.disk

    def add(self, request: Request) -> None:
        """Queue a request; or let it wait until a prefix of it is read from disk."""
        if not request.batch:
            self.notice_interactive()
        if self.disk is None or not self.disk.hold(request):
            self._admission.enqueue(request)

    def notice_interactive(self) -> None:
        """Somebody waits for the end of a step: for some time those of batches are no longer than others."""
        self._last_interactive = self._admission.seconds

    def continue_reads(self) -> Read | None:
        """Queue the requests that need not wait for the disk any more. Returns the next read, if there is one."""
        if self.disk is None:
            return None
        read = self.disk.next_read()
        for request in self.disk.take_released():
            self._admission.enqueue(request)
        return read

    def remove(self, id: int, index: int | None = None) -> None:
        """Remove a request, or one of its answers, from the queue or its slot. An unknown id has already ended."""

        def matches(request: Request) -> bool:
            return request.id == id and index in (None, request.index)

        for request in [request for request in self._running if matches(request)]:
            self._admission.release(request)
        for request in [request for request in self._queue if matches(request)]:
            self._queue.remove(request)
        if self.disk is not None:
            self.disk.remove([request for request in self.disk.waiting if matches(request)])

    def write_back(self) -> None:
        """Copy everything that finished requests left in cells to host memory."""
        self.cache.write_back()

    def patience(self, waited: float, *, is_coming: bool) -> float:
        """For how many seconds the first step after an idle time may wait for the next request, if it has `waited` so
        long: several short prompts take less time together. `is_coming`: a request is known to come. Without that, a
        single one never waits.
        """
        if self._running or self._admission.is_contended:
            return 0.0
        prompts = {request.id: request for request in self._queue}.values()  # answers to one prompt compute it once
        if any(request.deterministic for request in prompts):
            return 0.0
        return self._budget.patience([self._remainder(request) for request in prompts], waited, is_coming=is_coming)

    def _remainder(self, request: Request) -> tuple[int, int]:
        """The start and size of what a queued request has to compute of its prompt."""
        known = self.cached(request)
        return known, len(request.tokens) - known

    def cached(self, request: Request) -> int:
        """How many tokens of a request are cached now."""
        return self.cache.lookup(namespace(request), request.tokens, reusable(request))

    def schedule(self, silence: float = math.inf) -> Plan | None:
        """Plan the next step. A plan without spans only has cache operations. None: there is nothing to do. `silence`:
        for how many seconds no request has run.
        """
        self._sharing.continue_restores()
        if not self._running:
            self.prices.pass_time(math.inf)
        for request in self._admission.admit():
            self._groups.enter(request)
        self._sharing.start_followers()
        group = self._next_group()
        is_exact = bool(group) and group[0].deterministic
        spans, requests, decodes = self._exact_step(group) if is_exact else self._shared_step(group)
        if self._running:
            self.cache.limit_idle()
        is_urgent = bool(spans) and not decodes and self._chunks.prompts_only
        if self._may_write_back(silence, is_urgent=is_urgent):
            self._write_back_some()
        plan = Plan([], spans, requests, decodes)
        self._extra.add(plan, self.cache, room=min(self._n_batch, self._layout.free_cells))
        plan.operations.extend(self.cache.take_operations())
        return plan if spans or plan.operations else None

    def commit(
        self,
        plan: Plan,
        results: Sequence[Sampled | None],
        seconds: float = 0.0,
        *,
        has_ended: Callable[[Request], bool] = lambda _: False,
    ) -> list[Progress]:
        """Record what the step computed. `results` has an entry for each span, None where no token was sampled.

        What was sampled for a request that `has_ended` in the meantime is ignored. The caller removes the request, and
        with it the cells of drafts that were accepted.
        """
        if seconds and plan.spans and not plan.exact:
            chunks = plan.chunks
            undrafted = seconds - self._extra.observe(plan, results, seconds)
            gaps = self._layout.count_gaps(plan.requests)
            prompts = self._budget.observe(answers=plan.decodes, chunks=chunks, seconds=undrafted, gaps=gaps)
            self.prices.prefill.observe(sum(count for _, count in chunks), prompts)
            rent = self._budget.seconds_per_cell * sum(count for _, count in chunks)
            self.cache.charge_idle(rent + (self._shape.idle_cell_seconds if plan.decodes else 0.0))
            if plan.decodes:
                self.prices.generating = self._budget.generating(plan.decodes)
        self._admission.seconds += seconds
        if not all(request.batch for request in plan.requests):
            self.notice_interactive()
        self.prices.pass_time(seconds)
        self._groups.spent(seconds)
        progress: list[Progress] = []
        for span, request, result in zip(plan.spans, plan.requests, results, strict=True):
            if span.start < request.prompt_size:
                self.cache.advance(request.sequence, span.tokens)
            else:
                self.cache.grow(request.sequence, len(span.tokens))
            self._queue.charge(request, len(span.tokens))
            request.computed += len(span.tokens)
            self._sharing.after_step(request)
            steps = [] if has_ended(request) else self._accept(request, result)
            request.furthest = max(request.furthest, request.computed)
            progress += steps
            if steps and (steps[-1].finish is not None or steps[-1].error is not None):
                self._admission.release(request)
        # When the whole step is recorded: a request may start from what another one holds.
        for request in plan.requests:
            if request.shift is not None and len(request.tokens) >= self._n_ctx and request in self._running:
                self._admission.restart(request, request.shift.dropped(len(request.tokens)))
        return progress

    def record_copies(self, copies: Sequence[Copied]) -> None:
        """The engine made these copies."""
        for copied in copies:
            price = self.prices.save if copied.kind == "save" else self.prices.restore
            price.observe(copied.size, copied.seconds)

    def handle_no_cells(self, plan: Plan) -> Request | None:
        """The engine had no room for this step and computed nothing of it: free cells. Returns a request that has no
        room even alone; it is removed.
        """
        if self._extra.rest(plan):
            return None  # nothing else need give way
        return self._admission.recover_cells(plan.requests)

    def check_idle(self) -> None:
        """Check the counters of the cache while nothing runs. Raises `CacheCorrupted`."""
        assert self.is_idle, "the check is for an idle scheduler"
        self.cache.check_integrity()
        free, idle = self.cache.free, self.cache.idle_cells
        if free + idle != self.cells:
            raise CacheCorrupted(f"no request runs, but {free} free + {idle} idle cells are not {self.cells}")

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _may_write_back(self, silence: float, *, is_urgent: bool) -> bool:
        """Beside steps, unless it would delay one too much. While nothing runs: not together with the operations that a
        request left when it ended, and after `write_back_delay`, because the next request often comes at once.
        """
        self.prices.save_credit = (self._admission.seconds - self._last_write_back) / _REST if self._running else 0.0
        if self._running:
            has_rested = self.prices.save_credit >= self.prices.save.seconds(self.cache.next_write_back)
            return self._layout.writes_back_while_running and has_rested and not is_urgent
        return not self.cache.has_operations and silence >= self.write_back_delay

    def _write_back_some(self) -> None:
        self.cache.write_back_some()
        self._last_write_back = self._admission.seconds

    def _next_group(self) -> list[Request]:
        """The requests of the next step."""
        ready = [
            request
            for request in self._running
            if request.leader is None and not self.cache.is_restoring(request.sequence)
        ]
        if self._exact_batch > 1:
            exact = [request for request in ready if request.deterministic and request.is_generating]
            self._layout.close_gaps(exact, self._budget.pass_seconds)
        return self._groups.next(ready)

    def _exact_step(self, group: list[Request]) -> tuple[list[Span], list[Request], int]:
        """A step for deterministic requests: one prompt, or the answers that may be computed together."""
        return [make_span(request, exact_chunk(request, self._n_batch)) for request in group], group, 0

    def _shared_step(self, group: list[Request]) -> tuple[list[Span], list[Request], int]:
        decodes = [request for request in group if request.is_generating]
        prompts = [request for request in group if not request.is_generating]
        self._layout.reclaim(min(self._n_batch, sum(request.pending for request in group)))
        while not self._layout.reclaim(len(decodes)):
            self._preempt_one_of(decodes, prompts)
        self._layout.close_gaps(decodes, self._budget.pass_seconds)
        if self._computed_media:  # the others' turn
            prompts = [request for request in prompts if request.next_media is None] or (prompts if not decodes else [])
        if self._tile_wait.waits(prompts, len(decodes)):
            prompts = []
        work = self._prefill(prompts, decodes=len(decodes)) if prompts else []
        media = [item for item in work if item[0].next_media is not None]
        self._computed_media = bool(media)
        if media:
            work, decodes = media[:1], []
        if work and self._chunks.prompts_only:
            decodes = []
        work += [(request, 1) for request in decodes]
        # Adjacent sequences are computed in one pass.
        work.sort(key=lambda item: item[0].sequence)
        spans, requests = [make_span(*item) for item in work], [request for request, _ in work]
        return spans, requests, len(decodes)

    def _prefill(self, prompts: list[Request], *, decodes: int) -> list[tuple[Request, int]]:
        """Divide the room beside the generating requests among the prompts."""
        while not decodes and not self._layout.reclaim(1) and sum(other.computed > 0 for other in self._running) > 1:
            self._preempt_one_of(prompts)
        if not prompts:
            return []
        room = min(self._n_batch, self._layout.free_cells) - decodes
        if room > 0 and self._budget.batch_rows and self._is_patient:
            return self._chunks.fill(prompts, room=room, decodes=decodes)
        contended = self._admission.is_contended
        return self._chunks.divide(prompts, self._running, room=room, contended=contended, decodes=decodes)

    @property
    def _is_patient(self) -> bool:
        """Whether steps may be longer: only lines of batches run, and nobody has waited for anything for a while."""
        is_quiet = self._admission.seconds - self._last_interactive >= _QUIET_SECONDS
        return is_quiet and all(request.batch and request.prompt_probs < 0 for request in self._running)

    def _preempt_one_of(self, *groups: list[Request]) -> None:
        victim = self._admission.preempt_for_cells()
        for group in groups:
            if victim in group:
                group.remove(victim)

    # ── results ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _accept(self, request: Request, result: Sampled | None) -> list[Progress]:
        if request.max_tokens == 0 and not request.pending and (result is None or result.error is None):
            prompt = result.prompt if result is not None else ()
            return [Progress(request, None, "length", prompt=prompt, computed=request.computed)]
        if result is None:
            return []
        request.drafted += result.drafted
        request.accepted += len(result.more)
        steps = [self._append(request, result)]
        for accepted in result.more:
            # The token before it was drafted correctly, so it is computed.
            self.cache.grow(request.sequence, 1)
            self._queue.charge(request, 1)
            request.computed += 1
            steps.append(self._append(request, accepted))
        return steps

    def _append(self, request: Request, result: Sampled) -> Progress:
        token = result.token
        if token is None:
            return Progress(request, None, None, prompt=result.prompt, error=result.error)
        is_end = token in self._end_tokens
        if not is_end:
            if not request.produced:
                request.tokens = request.tokens.copy()  # all answers to a prompt share its list until now
            request.tokens.append(token)
        return Progress(
            request,
            None if is_end else token,
            self._finish_reason(request, is_stopped=is_end or result.last),
            result.logprobs,
            result.prompt,
            produced=request.produced,
            end=token if is_end else None,
            computed=request.computed,
            truncated=request.is_shifted or (request.shift is None and request.computed + 1 >= self._n_ctx),
        )

    def _finish_reason(self, request: Request, *, is_stopped: bool) -> FinishReason | None:
        if is_stopped:
            return "stop"
        if request.produced >= request.max_tokens:
            return "length"
        return "length" if request.shift is None and len(request.tokens) >= self._n_ctx else None


def _cache_and_sharing(shape: CacheShape, prices: Prices, running: list[Request]) -> tuple[Cache, Sharing]:
    if shape.reuse == "checkpoint":
        checkpoints = CheckpointCache(shape, prices)
        return checkpoints, SnapshotSharing(checkpoints, shape, running)
    if shape.reuse == "snapshot":
        snapshots = SnapshotCache(shape)
        return snapshots, SnapshotSharing(snapshots, shape, running)
    cache = PrefixCache(shape, prices)
    return cache, Sharing(cache, shape, running)
