"""What goes into the next step: pure decisions on token ids, without a model, a clock or a socket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from paddock.scheduling.budget import StepBudget
from paddock.scheduling.cache import Cache
from paddock.scheduling.chunks import Chunks
from paddock.scheduling.fairness import Expected, FairQueue
from paddock.scheduling.lanes import Lanes
from paddock.scheduling.prefix_tree import common_prefix
from paddock.scheduling.request import Progress, Request
from paddock.scheduling.slots import Slots, shared_by
from paddock.scheduling.snapshots import SnapshotCache
from paddock.types import (
    Adapters,
    CacheShape,
    Drafting,
    FinishReason,
    Operation,
    Sampled,
    Span,
)

# Deterministic requests compute their prompts in chunks cut at multiples of this, and reuse prefixes up to one, so that
# every token is always computed in a batch of the same shape.
GRID = 128
# A shared prefix that somebody is computing right now is worth waiting for if it saves at least this many tokens.
_WORTH_WAITING = 8
# Where memory can only be copied as it stands, a prompt must pause for it: a step more, worth this many tokens.
_WORTH_A_STOP = 16


@dataclass(slots=True, frozen=True)
class Plan:
    """One step: what to do with the cache first, then the spans to decode and, for each, whose they are."""

    operations: list[Operation]
    spans: list[Span]
    requests: list[Request]
    decodes: int = 0

    @property
    def exact(self) -> bool:
        """It is for deterministic requests."""
        return bool(self.requests) and self.requests[0].deterministic

    @property
    def adapters(self) -> Adapters:
        """What acts on all of it."""
        return self.requests[0].adapters if self.requests else ()

    @property
    def prompt_tokens(self) -> int:
        return sum(len(span.tokens) for span in self.spans) - self.decodes


class Scheduler:
    """Requests wait in one queue, run in one of `slots` places, and share every step that they can share.

    A step takes the next token of all answers under way, then prompt chunks as far as the budget goes. With unified
    cells, requests that outgrow them make the youngest step back into the queue, from where it goes on later.
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
        together: int = 1,
        drafts_for: int = 0,
        budget: StepBudget | None = None,
    ) -> None:
        self._snapshots = SnapshotCache(shape) if shape.reuse == "snapshot" else None
        self.cache = self._snapshots or Cache(shape)
        self._worth_waiting = max(_WORTH_WAITING if self._snapshots is None else _WORTH_A_STOP, shape.least_copied)
        self._shape = shape
        self._n_ctx = n_ctx
        self._n_batch = n_batch
        self._end_tokens = end_tokens
        self._continuous = continuous
        self._together = together
        self._drafts_for = drafts_for
        self._budget = budget or StepBudget(largest=n_batch)
        self._queue: FairQueue[Request] = FairQueue()
        self._running: list[Request] = []
        self.slots = Slots(slots, self.cache)
        self._arrivals = 0
        self._lanes = Lanes(together)
        self._share = Chunks(self._budget, self._queue)
        self._expected = Expected()
        self._seconds = 0.0
        """Spent in steps so far."""
        self._crowded = False
        """There are fewer cells than it counts on: nobody is let in beside those who run."""
        self.preemptions = 0

    # ── in and out ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def idle(self) -> bool:
        return not self._running and not self._queue and not self.cache.has_operations and not self.cache.parked

    def add(self, request: Request) -> None:
        if self._shape.reuse == "none" or (request.deterministic and not self._shape.exact):
            request.namespace = None
        self._expected.came(request.key)
        self._arrivals += 1
        request.arrival = self._arrivals
        self._queue.add(request)

    def remove(self, request_id: int, index: int | None = None) -> None:
        """Let go of a request, wherever it is. An unknown id has already ended, which is fine."""

        def meant(request: Request) -> bool:
            return request.id == request_id and index in (None, request.index)

        for request in [request for request in self._running if meant(request)]:
            self._release(request)
        for request in [request for request in self._queue if meant(request)]:
            self._queue.remove(request)

    def schedule(self) -> Plan | None:
        """The next step; one without spans only tidies the cache. None when there is nothing to do."""
        self._admit()
        self._gather_followers()
        lane = self._next_lane()
        own = bool(lane) and lane[0].deterministic
        spans, requests, decodes = self._own_step(lane) if own else self._shared_step(lane)
        hurried = bool(spans) and not decodes and self._share.alone
        if self.cache.parked and not hurried and (self._shape.unified or not self._running):
            self.cache.settle_some()
        operations = self.cache.take_operations()
        return Plan(operations, spans, requests, decodes) if spans or operations else None

    def commit(self, plan: Plan, results: Sequence[Sampled | None], seconds: float = 0.0) -> list[Progress]:
        """Record what the step computed and chose, span by span; `None` where nothing was chosen."""
        if seconds and plan.spans and not plan.exact:
            self._budget.observe(decodes=plan.decodes, prompt_tokens=plan.prompt_tokens, seconds=seconds)
        self._seconds += seconds
        progress: list[Progress] = []
        for span, request, result in zip(plan.spans, plan.requests, results, strict=True):
            if span.start < request.prompt_size:
                self.cache.advance(request.sequence, span.tokens)
            else:
                self.cache.grow(request.sequence, len(span.tokens))
            self._queue.charge(request, len(span.tokens))
            request.computed += len(span.tokens)
            if self._snapshots is not None and request.computed in request.stops:
                self._snapshots.keep(request.sequence)
            steps = self._advance(request, result)
            request.judged = max(request.judged, request.computed)
            progress += steps
            if steps and (steps[-1].finish is not None or steps[-1].error is not None):
                self._release(request)
        return progress

    def retreat(self, plan: Plan) -> Request | None:
        """The engine had no room for the step, and nothing of it was computed. Make room: what nobody runs on goes into
        host memory, or else the youngest steps back. Nobody is let in before one of the others has left. Returns the
        request that has no room even alone; it is out.
        """
        if self.cache.parked:
            self.settle()
            return None
        if len(self._running) == 1:
            (alone,) = self._running
            self._release(alone)
            return alone
        holding = [request for request in self._running if request.computed] or plan.requests
        self._step_back(self._queue.last(holding))
        self.settle()
        self._crowded = True
        return None

    def _advance(self, request: Request, result: Sampled | None) -> list[Progress]:
        if request.max_tokens == 0 and not request.pending:
            return [Progress(request, None, "length", prompt=result.prompt if result is not None else ())]
        if result is None:
            return []
        request.drafted += result.drafted
        request.accepted += len(result.more)
        steps = [self._take(request, result)]
        for further in result.more:
            # What was chosen before it had been guessed, and so is computed.
            self.cache.grow(request.sequence, 1)
            self._queue.charge(request, 1)
            request.computed += 1
            steps.append(self._take(request, further))
        return steps

    def _take(self, request: Request, result: Sampled) -> Progress:
        token = result.token
        if token is None:
            return Progress(request, None, None, prompt=result.prompt, error=result.error)
        ended = token in self._end_tokens
        if not ended:
            if not request.produced:
                request.tokens = request.tokens.copy()  # until now all answers to a prompt share it
            request.tokens.append(token)
        finish = self._finish(request, ended=ended or result.last)
        return Progress(
            request,
            None if ended else token,
            finish,
            result.logprobs,
            result.prompt,
            produced=request.produced,
        )

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def cells(self) -> int:
        return self._shape.cells

    def settle(self) -> None:
        """Bring everything worth keeping that nobody uses into host memory."""
        for sequence in self.cache.parked:
            self.cache.settle(sequence)

    # ── who runs ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _admit(self) -> None:
        while not self._running or (self._continuous and not self._crowded):
            request = self._queue.first(self._may_be_placed)
            if request is None or self._is_kept_free(request):
                return
            while (slot := self._place_for(request)) is None:
                if not self._make_way(request):
                    return
            self._queue.take(request)
            self._queue.enter(request)
            self.slots.enter(slot, request)
            request.sequence = self._free_sequence()
            self._running.append(request)
            self._lanes.enter(request)
            self._begin(request)

    def _is_kept_free(self, request: Request) -> bool:
        """Whether there is but one place left, and it is better kept for a key that may come at any moment: to have
        somebody step back for it would take longer than all that it wants.
        """
        return (
            request.wanted_slot is None
            and len(self.slots) - len(self._running) == 1 < len(self.slots)
            and self._queue.places(request) > 0
            and self._expected.anybody(self._seconds)
        )

    def _may_be_placed(self, request: Request) -> bool:
        """Who waits for a place of its own is waited for by nobody."""
        return request.wanted_slot is None or self.slots.is_free(request.wanted_slot)

    def _place_for(self, request: Request) -> int | None:
        slot = self.slots.free(request.wanted_slot)
        if slot is None:
            return None
        if self._shape.unified and (request.deterministic or not self._has_room(request)):
            self.settle()
        return slot if self._has_room(request) else None

    def _make_way(self, request: Request) -> bool:
        """Have somebody step back who has more than their share, for one who has less."""
        if self._shape.unified and request.deterministic and len(self._running) > 1:
            return False  # it runs alone, so no single place is of use to it
        guest = self._queue.who_makes_way(request, self._running)
        if guest is not None:
            self._step_back(guest)
        return guest is not None

    def _free_sequence(self) -> int:
        """In streams one next to those that run, if need be by settling what lies there: streams with a gap between
        them are computed one after another.
        """
        running = [request.sequence for request in self._running]
        parked = self.cache.parked
        if self._shape.unified:
            taken = {*running, *parked}
            free = next((id for id in range(len(self.slots) + self._shape.spare) if id not in taken), None)
            if free is None:
                free = parked[0]
                self.cache.settle(free)
            return free
        low, high = min(running, default=len(self.slots)), max(running, default=-1)

        def unfitness(sequence: int) -> tuple[int, int]:
            away = max(low - 1 - sequence, sequence - high - 1, 0) if running else 0
            return away, parked.index(sequence) + 1 if sequence in parked else 0

        best = min((sequence for sequence in range(len(self.slots)) if sequence not in running), key=unfitness)
        if best in parked:
            self.cache.settle(best)
        return best

    def _has_room(self, request: Request) -> bool:
        if not self._running:
            return True
        if not self._shape.unified:
            return True  # a stream has cells of its own
        if request.deterministic or self._running[0].deterministic:
            return False  # in shared cells only a request alone is sure to lie where it always lies
        # Who waits for a leader will share its cells.
        promised = sum(other.pending + 1 - (other.awaited if other.leader else 0) for other in self._running)
        known = max(self.cache.shared(self._namespace(request), request.tokens), self._leader(request)[1])
        return len(request.tokens) - known + promised < self.cache.free

    def _begin(self, request: Request) -> None:
        """Start from what is known of the prompt, or wait for another request that is computing more of it."""
        request.leader = None
        leader, shared = self._leader(request)
        limit = self._reusable(request)
        known = self.cache.lookup(self._namespace(request), request.tokens, limit)
        request.resumed, request.lost = request.judged, 0
        if leader is not None and shared >= known + self._worth_waiting:
            request.leader, request.awaited = leader, shared
            if self._snapshots is not None:
                leader.stops.add(shared)
            return
        if request.deterministic:
            limit = min(limit, known // GRID * GRID)
        request.computed = self.cache.enter(request.sequence, self._namespace(request), request.tokens, limit)
        request.resumed = max(request.judged, request.computed)
        request.lost = request.resumed - request.computed
        self._plan_stops(request)
        if not request.preempted:
            request.cached = min(request.computed, request.prompt_size)

    def _leader(self, request: Request) -> tuple[Request | None, int]:
        """The running request that will have computed the longest prefix of this one, and how long that is."""
        best: Request | None = None
        length = 0
        if request.namespace is None:
            return None, 0
        for other in self._running:
            if other is request:
                break  # only those that came before
            if other.generating or self._namespace(other) != self._namespace(request):
                continue
            if other.computing is request:
                continue  # it had to step back while others waited for it: nobody waits in a circle
            shared = min(common_prefix(other.tokens, request.tokens), self._reusable(request))
            if request.deterministic:
                shared = shared // GRID * GRID
            if self._snapshots is not None:
                shared = self._meeting_point(other, shared)
                if best is not None and shared < length + _WORTH_A_STOP:
                    continue
            if shared > length:
                best, length = other, shared
        return best, length

    @staticmethod
    def _meeting_point(leader: Request, shared: int) -> int:
        """Where a copy of all that it holds can be had: after `shared` tokens, or a little before if it stops there
        anyway; 0 if it will never stand there again.
        """
        start = leader.computed if leader.leader is None else leader.awaited
        near = [stop for stop in leader.stops if max(start, shared - _WORTH_A_STOP) <= stop <= shared]
        return max(near, default=shared if start <= shared else 0)

    def _plan_stops(self, request: Request) -> None:
        """A prompt pauses for a snapshot where it parts from those that came before, because more like them may come,
        and before its last token, because it may come again.
        """
        if self._snapshots is None or request.namespace is None or not self._shape.ram_bytes:
            return
        namespace = self._namespace(request)
        parting = self._snapshots.branch(namespace, request.tokens)
        for other in self._running:
            if other is not request and self._namespace(other) == namespace:
                parting = max(parting, common_prefix(other.tokens, request.tokens))
        reached, end = request.computed, request.prompt_size - 1
        for stop in (min(parting, end), end):
            if request.deterministic:
                stop = stop // GRID * GRID
            if stop >= reached + _WORTH_A_STOP:
                request.stops.add(stop)
                reached = stop

    def _gather_followers(self) -> None:
        for request in self._running:
            leader = request.leader
            if leader is not None and (leader.computed >= request.awaited or leader not in self._running):
                self._begin(request)

    @staticmethod
    def _reusable(request: Request) -> int:
        """The last token is always computed, because its logits are needed, and so are those of a prompt whose own
        tokens are asked about.
        """
        last = len(request.tokens) - 1
        return last if request.prompt_probs < 0 else min(last, request.judged)

    @staticmethod
    def _namespace(request: Request) -> str | None:
        return None if request.namespace is None else shared_by(request)

    # ── what they do next ────────────────────────────────────────────────────────────────────────────────────────────

    def _next_lane(self) -> list[Request]:
        """Those among whom the next step is shared."""
        ready = [request for request in self._running if request.leader is None]
        if self._together > 1:
            self._close_gaps([request for request in ready if request.deterministic and request.generating])
        return self._lanes.next(ready)

    def _own_step(self, lane: list[Request]) -> tuple[list[Span], list[Request], int]:
        """A step for deterministic requests: one prompt, or the answers that may be computed together."""
        return [self._span(request, self._next_cut(request) - request.computed) for request in lane], lane, 0

    def _next_cut(self, request: Request) -> int:
        """Where the next chunk of a deterministic request ends: on the grid, or before where a batch is smaller."""
        if request.computed < request.prompt_size:
            on_grid = (request.computed // GRID + 1) * GRID
            return min(request.prompt_size, on_grid, request.computed + self._n_batch)
        return request.computed + 1  # also when going on after an interruption: as it was generated, one by one

    def _shared_step(self, lane: list[Request]) -> tuple[list[Span], list[Request], int]:
        decodes = [request for request in lane if request.generating]
        prompts = [request for request in lane if not request.generating]
        if self._shape.unified and self.cache.free < self._n_batch:
            self.settle()
        while self._shape.unified and self.cache.free < len(decodes):
            victim = self._free_cells()
            for among in (decodes, prompts):
                if victim in among:
                    among.remove(victim)
        if not self._shape.unified:
            self._close_gaps(decodes)
        work = self._chunks(prompts, decodes=len(decodes)) if prompts else []
        if work and self._share.alone:
            decodes = []
        work += [(request, 1) for request in decodes]
        # In order of sequence: a stream per sequence is computed at once only where ids follow each other.
        work.sort(key=lambda item: item[0].sequence)
        spans, requests = [self._span(*item) for item in work], [request for request, _ in work]
        if not prompts and 0 < len(decodes) <= self._drafts_for:
            self._let_guess(spans, requests)
        return spans, requests, len(decodes)

    def _let_guess(self, spans: list[Span], requests: list[Request]) -> None:
        """Say of each answer how far it may be guessed ahead: no further than it can go, and than there is room for if
        all are. Beside prompts nothing is guessed: they fill a step already.
        """
        room = min(self._n_batch, self.cache.free) if self._shape.unified else self._n_batch
        each = room // len(spans) - 1
        for span, request in zip(spans, requests, strict=True):
            if request.draft is not None:
                left = min(request.max_tokens - request.produced, self._n_ctx - len(request.tokens)) - 1
                most = min(request.draft.n_max, each, left)
                if most > 0:
                    span.drafting = Drafting(request.tokens, msgspec.structs.replace(request.draft, n_max=most))

    def _chunks(self, prompts: list[Request], *, decodes: int) -> list[tuple[Request, int]]:
        """Who reads how much of their prompt, as far as there is room for it."""
        room = self._n_batch - decodes
        if self._shape.unified:
            while not decodes and self.cache.free == 0 and sum(other.computed > 0 for other in self._running) > 1:
                victim = self._free_cells()
                if victim in prompts:
                    prompts.remove(victim)
            room = min(room, self.cache.free - decodes)
        if not prompts:
            return []
        contended = self._queue.parties > 1 or self._expected.anybody(self._seconds)
        return self._share.share_out(prompts, self._running, decodes=decodes, room=room, contended=contended)

    def _span(self, request: Request, count: int) -> Span:
        end = request.computed + count
        complete = end == len(request.tokens) and request.max_tokens > 0
        span = Span(
            sequence=request.sequence,
            start=request.computed,
            tokens=request.tokens[request.computed : end],
            sampler=request.sampler if complete else None,
        )
        if request.is_judged:
            span.targets = request.tokens[request.computed + 1 : min(end + 1, request.prompt_size)]
            span.target_probs = request.prompt_probs
        return span

    def _close_gaps(self, decodes: list[Request]) -> None:
        """Streams with a gap between their ids are computed one after another, which costs far more than a copy."""
        if self._shape.reuse == "none":
            return
        ids = sorted(request.sequence for request in decodes)
        while ids and ids[-1] - ids[0] + 1 > len(ids):
            taken = {request.sequence for request in self._running}
            gap = next((id for id in range(ids[0], ids[-1]) if id not in taken), None)
            if gap is None:
                return  # others lie between them: prompts that go into the same step, or whoever cannot share it
            if gap in self.cache.parked:
                self.cache.settle(gap)
            last = next(request for request in decodes if request.sequence == ids[-1])
            self.cache.move(last.sequence, gap, last.computed)
            last.sequence = gap
            ids = sorted(request.sequence for request in decodes)

    # ── who leaves ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _finish(self, request: Request, *, ended: bool) -> FinishReason | None:
        if ended:
            return "stop"
        if request.produced >= request.max_tokens or len(request.tokens) >= self._n_ctx:
            return "length"
        return None

    def _free_cells(self) -> Request:
        """Send a running request back to the queue because cells are short."""
        request = self._queue.last(request for request in self._running if request.computed)
        self._step_back(request)
        self.settle()  # its cells are needed now
        return request

    def _step_back(self, request: Request) -> None:
        """A running request waits again. What it computed is kept as long as memory allows."""
        begun = request.leader is None
        self._release(request)
        request.computed = 0
        request.stops.clear()
        if begun:
            request.preempted += 1
            self.preemptions += 1
        self._queue.add(request)
        self._expected.came(request.key)

    def _release(self, request: Request) -> None:
        if request.leader is None:
            size = request.computed
            if request.deterministic or not self._shape.keeps_answers:
                size = min(size, request.prompt_size)
            if request.deterministic:
                size = size // GRID * GRID
            keep = request.tokens[:size]
            self.cache.leave(request.sequence, keep)
            self.slots.remember(request, keep)
        request.leader = None
        self._crowded = False
        self.slots.leave(request)
        self._running.remove(request)
        self._queue.leave(request)
        if not request.batch and not self._queue.is_here(request):
            self._expected.left(request.key, self._seconds)
