"""Which requests run: moves them from the queue into slots, and out of them when they end or are preempted."""

from __future__ import annotations

from paddock.scheduling.fairness import FairQueue, RecentKeys
from paddock.scheduling.layout import Layout
from paddock.scheduling.plan import GRID
from paddock.scheduling.request import Request
from paddock.scheduling.slots import Slots


class Admission:
    def __init__(self, layout: Layout, slots: Slots, *, continuous: bool) -> None:
        self._layout = layout
        self._cache = layout.cache
        self._sharing = layout.sharing
        self._shape = layout.shape
        self._running = layout.running
        self._slots = slots
        self._continuous = continuous
        self._recent_keys = RecentKeys()
        self._is_paused = False
        """The engine ran out of cells: no request is admitted until one has left."""
        self.queue: FairQueue[Request] = FairQueue()
        self.seconds = 0.0
        """Time spent in steps so far."""
        self.preemptions = 0

    @property
    def is_contended(self) -> bool:
        """Whether several keys share the model, or may at any moment."""
        return self.queue.active_keys > 1 or self._recent_keys.any(self.seconds)

    def enqueue(self, request: Request) -> None:
        if self._shape.reuse == "none" or (request.deterministic and not self._shape.has_exact_copies):
            request.namespace = None
        if not request.batch:
            self._recent_keys.remove(request.key)
        self.queue.add(request)

    def admit(self) -> list[Request]:
        """Give free slots to queued requests. Returns the admitted requests."""
        admitted: list[Request] = []
        while not self._running or (self._continuous and not self._is_paused):
            request = self.queue.first(self._is_slot_free)
            if request is None or self._is_reserved(request):
                break
            while (slot := self._slot_for(request)) is None and self._preempt_for(request):
                pass
            if slot is None:
                break
            self.queue.take(request)
            self.queue.mark_running(request)
            self._slots.enter(slot, request)
            request.sequence = self._layout.free_sequence(request)
            self._running.append(request)
            admitted.append(request)
            self._sharing.start(request)
        return admitted

    def release(self, request: Request) -> None:
        """Take a request out of its slot. The cache keeps what it computed."""
        if request.leader is None:
            kept, stored = self._kept_sizes(request)
            keep = request.tokens[:kept]
            self._cache.leave(request.sequence, keep, stored)
            self._slots.remember(request, keep)
        request.leader = None
        self._is_paused = False
        self._slots.leave(request)
        self._running.remove(request)
        self.queue.mark_stopped(request)
        if not request.batch and not self.queue.is_active(request):
            self._recent_keys.add(request.key, self.seconds)

    def preempt(self, request: Request) -> None:
        """Put a running request back into the queue. It continues later from what the cache still has."""
        has_started = request.leader is None
        self.release(request)
        request.computed = 0
        request.snapshot_points.clear()
        if has_started:
            request.preempted += 1
            self.preemptions += 1
        self.queue.add(request)
        if not request.batch:
            self._recent_keys.remove(request.key)

    def restart(self, request: Request, dropped: range) -> None:
        """Drop tokens of a running request and compute the others again, in the same slot. Cells cannot be moved: other
        requests share them, and their contents depend on the dropped tokens.
        """
        # Of an answer that goes on like this, only the prompt and what is kept of it are worth storing.
        stored = dropped.start if request.is_shifted else max(dropped.start, request.prompt_size)
        kept, stored = (min(stored, size) for size in self._kept_sizes(request))
        self._cache.leave(request.sequence, request.tokens[:kept], stored)
        request.drop(dropped)
        self._sharing.start(request)

    def preempt_for_cells(self) -> Request:
        """Preempt the youngest request that has cells. Returns it."""
        request = self.queue.youngest(request for request in self._running if request.computed)
        self.preempt(request)
        return request

    def recover_cells(self, requests: list[Request]) -> Request | None:
        """Free cells after the engine had no room for a step of these requests: reclaim what is resident, or preempt
        the youngest and admit no request until one has left. Returns a request that has no room even alone; it is
        released.
        """
        if self._cache.resident:
            self._layout.reclaim_all()
            return None
        if len(self._running) == 1:
            (alone,) = self._running
            self.release(alone)
            return alone
        holding = [request for request in self._running if request.computed] or requests
        self.preempt(self.queue.youngest(holding))
        self._layout.reclaim_all()
        self._is_paused = True
        return None

    def _is_slot_free(self, request: Request) -> bool:
        """A request that wants a busy slot does not block the others."""
        return request.wanted_slot is None or self._slots.is_free(request.wanted_slot)

    def _is_reserved(self, request: Request) -> bool:
        """Whether the only free slot is kept for a key that left a moment ago: a preemption for it would take longer
        than its whole request.
        """
        return (
            request.wanted_slot is None
            and len(self._slots) - len(self._running) == 1 < len(self._slots)
            and self.queue.slots(request) > 0
            and self._recent_keys.any(self.seconds)
        )

    def _slot_for(self, request: Request) -> int | None:
        slot = self._slots.free(request.wanted_slot)
        return slot if slot is not None and self._layout.make_room(request) else None

    def _preempt_for(self, request: Request) -> bool:
        """Preempt a request of a key that has more than its share, if there is one."""
        if self._layout.runs_alone(request) and len(self._running) > 1:
            return False  # a single slot does not help it
        victim = self.queue.victim(request, self._running)
        if victim is not None:
            self.preempt(victim)
        return victim is not None

    def _kept_sizes(self, request: Request) -> tuple[int, int]:
        """How many computed tokens stay in cells, and how many of these are worth a copy in host memory."""
        if request.deterministic:
            kept = min(request.computed, request.prompt_size) // GRID * GRID
            return kept, kept
        kept = request.computed
        return kept, kept if self._shape.saves_answers else min(kept, request.prompt_size)
