"""How requests share prefixes: a request starts from the cache, or waits for another that computes the same prefix."""

from __future__ import annotations

from paddock.scheduling.cache import Cache
from paddock.scheduling.checkpoint_cache import CheckpointCache
from paddock.scheduling.plan import GRID
from paddock.scheduling.radix_tree import common_prefix
from paddock.scheduling.request import Request
from paddock.scheduling.slots import namespace_of
from paddock.scheduling.snapshot_cache import SnapshotCache
from paddock.types import CacheShape

# A request waits for a leader if that saves at least this many tokens.
_MIN_SAVING = 8
# The same where memory cannot be cut: a snapshot costs the leader one more step, worth this many tokens.
_MIN_SNAPSHOT_SAVING = 16
# For the report of a request: so many tokens of the nearest cached prefix after the place where it differs.
_FOLLOWING = 32
# New text has checkpoints at least this far apart, and those of one prompt take at most this part of host memory.
_SPACING, _SHARE = 2 * GRID, 1 / 16
# Behind a known prefix, less new text than this has none: usually it is the next turn of a conversation.
_LONG = 4 * _SPACING


class Sharing:
    """Prefix sharing where memory can be cut at any token."""

    min_saving = _MIN_SAVING
    min_gain = 1
    """A later leader replaces an earlier one if it saves at least this many more tokens."""

    def __init__(self, cache: Cache, shape: CacheShape, running: list[Request]) -> None:
        self._cache = cache
        self._running = running
        self._worth_waiting = max(self.min_saving, shape.min_copied)

    def start(self, request: Request) -> None:
        """Start a request from its cached prefix, or let it wait for a leader that will have computed more."""
        request.leader = None
        leader, shared = self._leader(request)
        limit = reusable(request)
        cached = self._cache.lookup(namespace(request), request.tokens, limit)
        request.admitted_at, request.lost = request.furthest, 0
        if leader is not None and shared >= cached + self._worth_waiting:
            request.leader, request.awaited = leader, shared
            self._prepare_leader(leader, shared)
            return
        if request.deterministic:
            limit = min(limit, cached // GRID * GRID)
        if request.media:
            limit = request.outside_media(min(limit, cached))
        if not request.furthest:  # later it would find itself
            request.nearest = self._cache.nearest(namespace(request), request.tokens, _FOLLOWING)
        before = self._cache.restored
        request.computed = self._cache.enter(request.sequence, namespace(request), request.tokens, limit)
        self._leave_media(request)
        _count_cached(request, self._cache.restored - before)
        self._plan_snapshots(request)

    def continue_restores(self) -> None:
        """Restore the next part of large prefixes."""
        for request in self._running:
            if self._cache.is_restoring(request.sequence):
                limit = reusable(request)
                before = self._cache.restored
                request.computed += self._cache.restore_more(request.sequence, request.tokens, request.computed, limit)
                self._leave_media(request)
                _count_cached(request, self._cache.restored - before)

    def _leave_media(self, request: Request) -> None:
        """Give up the cached tokens of an image that is not cached whole: only whole images are known to be equal."""
        length = request.outside_media(request.computed)
        if length == request.computed or self._cache.is_restoring(request.sequence):
            return
        self._cache.leave(request.sequence, request.tokens[:length], length)
        request.computed = self._cache.enter(request.sequence, namespace(request), request.tokens, length)

    def start_followers(self) -> None:
        """Start the requests whose leader has computed their prefix or has left."""
        for request in self._running:
            leader = request.leader
            if leader is not None and (leader.computed >= request.awaited or leader not in self._running):
                self.start(request)

    def shared_cells(self, request: Request) -> int:
        """How many tokens of a waiting request need no cells of their own."""
        return max(self._cache.shared(namespace(request), request.tokens), self._leader(request)[1])

    def after_step(self, request: Request) -> None:
        """A step has computed tokens of this request."""

    def _leader(self, request: Request) -> tuple[Request | None, int]:
        """The running request that will have computed the longest prefix of this one, and the length of the prefix."""
        best: Request | None = None
        length = 0
        if request.namespace is None:
            return None, 0
        for other in self._running:
            if other is request:
                break  # only requests that came earlier
            if other.is_generating or namespace(other) != namespace(request):
                continue
            if other.root_leader is request:
                continue  # it was preempted while others waited for it: requests must not wait in a circle
            shared = min(common_prefix(other.tokens, request.tokens), reusable(request))
            if request.deterministic:
                shared = shared // GRID * GRID
            shared = self._available(other, request.outside_media(shared))
            if shared >= length + (self.min_gain if best is not None else 1):
                best, length = other, shared
        return best, length

    def _available(self, leader: Request, shared: int) -> int:
        """How many of the `shared` tokens the leader can share."""
        return shared

    def _prepare_leader(self, leader: Request, shared: int) -> None:
        """A request waits for the first `shared` tokens of this leader."""

    def _plan_snapshots(self, request: Request) -> None:
        """Choose where the prompt stops for snapshots."""


class SnapshotSharing(Sharing):
    """Prefix sharing where a state exists only for the tokens that a sequence holds. A prompt must stop where a
    snapshot or a checkpoint is wanted.
    """

    min_saving = _MIN_SNAPSHOT_SAVING
    min_gain = _MIN_SNAPSHOT_SAVING

    def __init__(self, cache: SnapshotCache | CheckpointCache, shape: CacheShape, running: list[Request]) -> None:
        super().__init__(cache, shape, running)
        self._snapshots = cache
        self._shape = shape
        self._has_host_memory = bool(shape.ram_bytes)

    def after_step(self, request: Request) -> None:
        if request.computed in request.snapshot_points:
            self._snapshots.take_snapshot(request.sequence)

    def _available(self, leader: Request, shared: int) -> int:
        """After `shared` tokens, or a little earlier if the leader stops there anyway. 0: the leader is past it."""
        start = leader.computed if leader.leader is None else leader.awaited
        near = [
            point for point in leader.snapshot_points if max(start, shared - _MIN_SNAPSHOT_SAVING) <= point <= shared
        ]
        return max(near, default=shared if start <= shared else 0)

    def _prepare_leader(self, leader: Request, shared: int) -> None:
        leader.snapshot_points.add(shared)

    def _plan_snapshots(self, request: Request) -> None:
        """Where the prompt branches off from earlier ones, because more like them may come, and before its last token,
        because it may come again. The first of its kind, and much new text, also where a later one may branch off.
        """
        if request.namespace is None or not self._has_host_memory or request.is_shifted:
            return
        own = namespace_of(request)
        # What was known before it started: it may continue the very sequence that it differs from.
        branch = max(self._snapshots.branch(own, request.tokens), request.nearest.length)
        for other in self._running:
            if other is not request and namespace(other) == own:
                branch = max(branch, common_prefix(other.tokens, request.tokens))
        reached, end = request.computed, request.prompt_size - 1
        if request.system_size and isinstance(self._snapshots, CheckpointCache):
            self._snapshots.note_beginning(own, request.tokens[: min(request.system_size, end)])
        points = {min(branch, end), end}
        is_first = branch < _SPACING
        if isinstance(self._snapshots, CheckpointCache) and (is_first or end - reached >= _LONG):
            likely = self._likely_branches(request.tokens, reached, end, messages=is_first)
            points.update(point for point in likely if min(end - point, abs(branch - point)) >= _MIN_SNAPSHOT_SAVING)
        if branch < request.system_size:
            # A new system text: the next prompt with it branches off at its end, so no other point is as useful there.
            system = min(request.system_size, end)
            points = {point for point in points if abs(point - system) >= _MIN_SNAPSHOT_SAVING or point == branch}
            points.add(system)
        for point in sorted(points):
            if request.deterministic:
                point = point // GRID * GRID
            point = request.outside_media(point)
            if point >= reached + _MIN_SNAPSHOT_SAVING:
                request.snapshot_points.add(point)
                reached = point

    def _likely_branches(self, tokens: list[int], start: int, end: int, *, messages: bool) -> list[int]:
        """The first and last `messages`, and points at equal distances."""
        shape = self._shape
        size = shape.snapshot.bytes(max(shape.snapshot.window, 1))
        # The known prefix has its part of the checkpoints of the sequence.
        count = shape.checkpoints * (end - start) // max(end, 1)
        most = min(count, int(shape.ram_bytes * _SHARE / max(size, 1))) - 1
        if most <= 0:
            return []
        delimiters = shape.delimiters if messages else ()
        begins = [at for at in range(start + 1, end) if tokens[at] in delimiters] if delimiters else []
        points = [*begins[:2], *begins[2:][-2:]][:most]
        if most > len(points):
            distance = -(-(end - start) // (most - len(points)))
            step = max(_SPACING, -(-distance // GRID) * GRID)
            points += range(start // step * step + step, end, step)
        return points


def namespace(request: Request) -> str | None:
    """The namespace of a request in the cache. None: it shares nothing."""
    return None if request.namespace is None else namespace_of(request)


def reusable(request: Request) -> int:
    """How many tokens may come from the cache. The last one is always computed, because its logits are needed, and so
    are those whose probabilities are wanted.
    """
    last = len(request.tokens) - 1
    return last if request.prompt_probs < 0 else min(last, request.furthest)


def _count_cached(request: Request, restored: int) -> None:
    """The request has a prefix from the cache, of which so many tokens were just restored from host memory."""
    request.admitted_at = max(request.furthest, request.computed)
    request.lost = request.admitted_at - request.computed
    if not request.preempted and not request.is_shifted:
        request.cached = min(request.computed, request.prompt_size)
        request.from_host += restored
