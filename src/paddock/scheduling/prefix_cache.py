"""The cache of models whose memory can be cut at any token: a prefix tree over cells and host memory.

A finished sequence is *resident*: it keeps its cells until another sequence needs them. A later request with the same
prefix shares or continues it. Meanwhile its tokens are copied to host memory, in parts between two steps or while
nothing runs, so that its cells can be reclaimed at no cost.

"""

from __future__ import annotations

from collections.abc import Collection

from paddock.scheduling.cache_view import CacheView
from paddock.scheduling.plan import GRID
from paddock.scheduling.prefix_tree import Match, Node
from paddock.scheduling.prices import Prices
from paddock.scheduling.quota import tenant_of
from paddock.scheduling.resident_sequences import ResidentSequences
from paddock.scheduling.sequences import Held, Resident
from paddock.types import CacheShape, Forget, Fork, Restore

# Where a stream can only be read whole, this is done while there is time for tokens that are at least this part of it.
_WORTH_READING = 1 / 4
# A request that continues a finished sequence cuts off what it does not share. Fewer tokens than this are lost then.
_WORTH_KEEPING = 16
# The tokens that would be cut off are worth a copy of the others on the device if they are at least this part of those:
# on an H200, computing takes 60 times as long.
_WORTH_FORKING = 1 / 16
# In the stream layout a copy on the device is preferred to a longer one from host memory, unless it lacks more than
# this part of it.
_WORTH_HOST = 1 / 8


class PrefixCache(ResidentSequences):
    def __init__(self, shape: CacheShape, prices: Prices | None = None) -> None:
        super().__init__(shape, prices)
        self._evicts_running = False

    @property
    def used(self) -> int:
        return self._private + (self._tree.hot_tokens if self._shape.unified else 0)

    def shared(self, namespace: str | None, tokens: list[int]) -> int:
        if namespace is None or not self._shape.unified:
            return 0
        return self._tree.match(namespace, tokens).hot()

    def _begin_clear(self, tenant: str | None) -> None:
        for span in [span for span, (owner, _) in self._spans.items() if tenant in (None, owner)]:
            self.unwritten.forget_span(span)
        self.unwritten.forget_evicted(tenant)
        for sequence, resident in list(self._residents.items()):
            if tenant in (None, tenant_of(resident.namespace)):
                self._free(sequence)

    def view(self, limit: int) -> CacheView:
        held = [held.node for held in self._held.values() if held.node is not None]
        return self._tree.view([*held, *(resident.node for resident in self._residents.values())], limit)

    # ── sequences ────────────────────────────────────────────────────────────────────────────────────────────────────

    def enter(self, sequence: int, namespace: str | None, tokens: list[int], limit: int) -> int:
        assert sequence not in self._held, f"sequence {sequence} is running"
        self._count_idle_again()
        if namespace is None:
            if sequence in self._residents:
                self.reclaim(sequence)
            self._held[sequence] = Held(None, None)
            return 0
        if sequence in self._residents:
            if length := self._continue(sequence, namespace, tokens, limit):
                return length
            self.reclaim(sequence)
        match = self._tree.match(namespace, tokens)
        self._touch(namespace, match)
        held = self._held[sequence] = Held(namespace, None)
        length = self._load(sequence, match, 0, min(match.length, limit))
        held.node = self._tree.hold(sequence, namespace, match, length)
        held.private = 0 if self._shape.unified else length
        _count_hits(held.node)
        return length

    def home(self, namespace: str | None, tokens: list[int]) -> int | None:
        """The one that shares most, if that is more than half of it and as much as any other source has."""
        if namespace is None or self._shape.unified:
            return None
        limit = len(tokens) - 1
        kept, home = max(
            ((it.shared(namespace, tokens, limit), id) for id, it in self._residents.items()),
            default=(0, -1),
        )
        if not kept or kept < self.lookup(namespace, tokens, limit):
            return None
        return home if 2 * kept > len(self._residents[home].tokens) else None

    def is_worth_sparing(self, sequence: int, namespace: str | None, tokens: list[int]) -> bool:
        if namespace is None or not self._shape.forks_on_device:
            return False
        resident = self._residents[sequence]
        kept = resident.shared(namespace, tokens, len(tokens) - 1)
        cut = len(resident.tokens) - max(kept, self._tree.match(namespace, resident.tokens).stored())
        return cut >= max(_WORTH_KEEPING, kept * _WORTH_FORKING)

    def is_stored(self, sequence: int) -> bool:
        return self._is_stored(self._residents[sequence])

    def is_restoring(self, sequence: int) -> bool:
        return sequence in self._held and self._held[sequence].is_restoring

    def restore_more(self, sequence: int, tokens: list[int], start: int, limit: int) -> int:
        held = self._held[sequence]
        assert held.namespace is not None, "it has a prefix"
        match = self._tree.match(held.namespace, tokens)
        length = self._load(sequence, match, start, max(min(match.length, limit), start))
        held.node = self._tree.hold(sequence, held.namespace, match, length)
        self._count_idle_again()
        return length - start

    def advance(self, sequence: int, tokens: list[int]) -> None:
        held = self._held[sequence]
        private = len(tokens)
        if held.node is not None:
            held.node, duplicates = self._tree.extend(sequence, held.node, tokens)
            private = duplicates if self._shape.unified else private
        held.private += private

    def grow(self, sequence: int, count: int) -> None:
        self._held[sequence].private += count

    def leave(self, sequence: int, tokens: list[int], stored: int) -> None:
        held = self._held.pop(sequence)
        self._count_idle_again()
        if held.namespace is None or held.node is None or not tokens:
            if held.node is not None:
                self._release(sequence, held.node)
            self._operations.append(Forget(sequence))
            return
        if len(tokens) > held.node.end:
            node, _ = self._tree.extend(sequence, held.node, tokens[held.node.end :])
        else:
            node = self._trim(sequence, held.node, held.namespace, tokens)
        self._operations.append(Forget(sequence, len(tokens)))
        private = self._private_cells(sequence, node)
        is_kept = stored and self._quota.budget and self._prices.is_worth_keeping(stored, self.state_size(stored))
        goal = stored if is_kept else 0
        written = min(self._tree.match(held.namespace, tokens).stored(), goal)
        if not self._shape.saves_parts and goal - written < goal * _WORTH_READING:
            written = goal
        self._residents[sequence] = Resident(held.namespace, tokens, node, private, goal, written, self._rent)
        self._drop_contained(sequence, node)

    def move(self, source: int, target: int, length: int) -> None:
        held = self._held.get(source)
        node = self._residents[source].node if held is None else held.node
        if node is not None:
            self._tree.rename(node, source, target)
        if held is None:
            self._residents = {target if id == source else id: it for id, it in self._residents.items()}
        else:
            self._held[target] = self._held.pop(source)
        self._reserve_for_fork(length, length, ())
        self._operations += [Fork(source, target, length), Forget(source)]

    def _continue(self, sequence: int, namespace: str, tokens: list[int], limit: int) -> int:
        """Continue a resident sequence in its cells. Returns how many tokens it keeps; 0: another source has more."""
        resident = self._residents[sequence]
        match = self._tree.match(namespace, tokens)
        kept = resident.shared(namespace, tokens, limit)
        if not kept or kept < min(match.length, limit):
            return 0
        lost = self._lost(resident, kept)
        if lost >= _WORTH_KEEPING and self._is_worth_saving(resident, lost):
            self._finish_write_back(sequence, resident)
        self._touch(namespace, match)
        del self._residents[sequence]
        node = self._trim(sequence, resident.node, namespace, tokens[:kept])
        self._operations.append(Forget(sequence, kept))
        self._held[sequence] = Held(namespace, node, self._private_cells(sequence, node))
        _count_hits(node)
        return kept

    def _load(self, sequence: int, match: Match, start: int, length: int) -> int:
        """Give a sequence with `start` tokens up to `length` matched tokens. Returns how many it has."""
        held = self._held[sequence]
        held.is_restoring = False
        hot = max(min(match.hot(), length), start)
        if self._shape.unified:
            length = min(length, hot + max(self.free, 0))
            if length - hot < self._shape.min_copied or not self._can_restore(length - hot, match):
                length = hot
            most = self._max_restored
            if length - hot > most and len(self._held) > 1:
                length, held.is_restoring = hot + most, True
            sources = match.sources(hot)
        else:
            # A stream has cells of its own, so everything comes from one source.
            stored = min(match.stored(), length)
            if stored >= hot and not self._can_restore(stored, match):
                stored, hot = 0, hot // GRID * GRID
            lacking = stored * _WORTH_HOST if self._shape.forks_on_device else 0
            if stored - hot > lacking or (stored >= hot and not self._shape.forks_on_device):
                hot, length = 0, stored
            else:
                length = hot
            if length < self._shape.min_copied:
                return 0
            sources = [(holder, 0, hot) for holder, _, _ in match.sources(hot)[-1:]]
            if sources and not self._reserve_for_fork(self._cells(sources[0][0]), hot, match.nodes):
                return 0
        self._operations += [Fork(holder, sequence, end, max(at, start)) for holder, at, end in sources if end > start]
        if length > hot:
            self._operations.append(Restore(sequence, hot, match.pieces(hot, length)))
            self.restored += length - hot
        return length

    def _reserve_for_fork(self, tokens: int, length: int, protected: Collection[Node]) -> bool:
        """Make room for a copy of the first `length` tokens of a stream with so many `tokens`. False: it cannot be
        made. Without a buffer libllama makes it, which is slower.
        """
        if not self._shape.unified and not self._shape.forks_on_device:
            self._reserve(tokens, (), evicts=False)
        return True

    def _can_restore(self, tokens: int, match: Match) -> bool:
        """Whether there is room for the copy, and it is faster than computing."""
        size = tokens * self._shape.bytes_per_token
        if not tokens or not self._prices.is_worth_restoring(tokens, size):
            return False
        return self._reserve(tokens, match.nodes)

    def _cells(self, sequence: int) -> int:
        """The cells of a stream."""
        return (self._held.get(sequence) or self._residents[sequence]).private

    @property
    def _max_restored(self) -> int:
        """How many tokens may be restored between two steps while other requests run."""
        return self._prices.restore_tokens(self._shape.bytes_per_token, self._shape.max_restored)

    def _private_cells(self, sequence: int, node: Node) -> int:
        """The private cells of a sequence whose tokens are all in the tree, down to this node."""
        duplicates = sum(len(part.tokens) for part in node.path() if sequence in part.duplicates)
        return duplicates if self._shape.unified else node.end

    # ── host memory ──────────────────────────────────────────────────────────────────────────────────────────────────

    def erase(self, namespace: str, tokens: list[int], keep: int = 0) -> int:
        for sequence, resident in list(self._residents.items()):
            if resident.shared(namespace, tokens, len(tokens)) > keep:
                self._free(sequence)
        match = self._tree.match(namespace, tokens)
        if match.nodes and match.nodes[-1].end > match.length:
            return 0  # a longer prefix contains all of it
        before = match.stored()
        for span in self._tree.forget([node for node in match.nodes if node.start >= keep]):
            self.unwritten.forget_span(span)
            self._drop(span)
        return before - self._tree.match(namespace, tokens).stored()

    def _evict_more(self) -> None:
        self._evicts_running = True  # they have it in cells too
        self._evict_until_fits(0, self._quota.largest)
        self._evicts_running = False

    def _evict(self, tenant: str, protected: Collection[Node]) -> None:
        running = () if self._evicts_running else self._held
        residents = (resident.node for resident in self._residents.values())
        span = self._tree.evict(tenant, protected, running, residents)
        if span is not None:
            self._drop(span)

    # ── integrity ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _private(self) -> int:
        running = sum(held.private for held in self._held.values())
        return running + sum(resident.private for resident in self._residents.values())

    def _count_used(self) -> int:
        hot = sum(len(node.tokens) for node in self._tree.nodes() if node.holders)
        return self._private + (hot if self._shape.unified else 0)


def _count_hits(node: Node) -> None:
    for shared in node.path():
        shared.hits += 1
