"""Which cells and which host memory hold what: every change of them is decided here, as a list of operations.

Cells belong to running sequences. What is new of one that leaves is copied into host memory, and a later one with the
same prefix gets it from there, or from a sequence that has it right now. In a stream of its own nobody is slowed by
what a sequence leaves behind, so there the copy waits until there is time for it, or the stream is needed. In shared
cells it is made at once, or, if it is large, a part of it in each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paddock.scheduling.known import Known
from paddock.scheduling.prefix_tree import Match, Node, PrefixTree
from paddock.scheduling.quota import Quota, tenant_of
from paddock.types import Adopt, CacheShape, Drop, Forget, Fork, Operation, Piece, Restore, Save

# Host memory is kept in spans of at most this many tokens. A span shared by two branches is freed when both are gone,
# so this also bounds what a branching can waste.
_SPAN = 256


@dataclass(slots=True)
class _Held:
    """What one running sequence has in cells."""

    namespace: str | None
    node: Node | None
    """Where its part of the tree ends; None for a sequence that neither reads nor leaves anything."""
    private: int = 0
    """Cells outside the tree: generated tokens, and doubles of what another sequence holds."""


@dataclass(slots=True)
class _Parked:
    """What a sequence left in its cells, still to be copied into host memory."""

    namespace: str
    tokens: list[int]
    node: Node
    cells: int
    copied: int
    """As many tokens from the beginning on as have been."""


class Cache:
    def __init__(self, shape: CacheShape) -> None:
        self._shape = shape
        self._tree = PrefixTree()
        self._held: dict[int, _Held] = {}
        self._parked: dict[int, _Parked] = {}
        self._operations: list[Operation] = []
        self._budget = shape.ram_bytes // shape.bytes_per_token if shape.bytes_per_token else 0
        self._quota = Quota(self._budget)
        self._spans: dict[int, tuple[str, int]] = {}
        """Whose each is, and how many tokens it has."""
        self._next_span = 1
        self.stored = 0
        """Tokens in host memory."""
        self.evicted = 0

    def resize(self, ram_bytes: int) -> None:
        """From now on host memory holds no more than this; what is too much is evicted, as far as nobody uses it."""
        self._budget = ram_bytes // self._shape.bytes_per_token if self._shape.bytes_per_token else 0
        self._quota.resize(self._budget)
        in_use: set[str] = set()
        while self.stored > self._budget and (victim := self._quota.largest(in_use)) is not None:
            try:
                span = self._tree.evict(victim, ())
            except LookupError:
                in_use.add(victim)
                continue
            self.evicted += 1
            if span is not None:
                self._free([span])

    @property
    def stored_bytes(self) -> int:
        return self.stored * self._shape.bytes_per_token

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def free(self) -> int:
        """Cells that nobody has. With a stream for each sequence they are not interchangeable."""
        return self._shape.cells - self.running - self.parked_cells

    @property
    def running(self) -> int:
        private = sum(held.private for held in self._held.values())
        return private + (self._tree.hot_tokens if self._shape.unified else 0)

    @property
    def parked(self) -> Sequence[int]:
        """The sequences that have left something to be settled, oldest first."""
        return list(self._parked)

    @property
    def parked_cells(self) -> int:
        return sum(parked.cells for parked in self._parked.values())

    def lookup(self, namespace: str | None, tokens: list[int], limit: int | None = None) -> int:
        """How many of the first tokens, at most `limit`, need not be computed."""
        if namespace is None:
            return 0
        return self._tree.match(namespace, tokens[:limit]).length

    def shared(self, namespace: str | None, tokens: list[int]) -> int:
        """How many of the first tokens need no cells of their own."""
        if namespace is None or not self._shape.unified:
            return 0
        return self._tree.match(namespace, tokens).hot()

    def stored_pieces(self, namespace: str, tokens: list[int]) -> list[Piece]:
        """Where host memory has the first of these tokens, as far as it has them."""
        match = self._tree.match(namespace, tokens)
        return match.pieces(0, match.stored())

    def known(self, limit: int) -> Known:
        """For somebody who looks on: no more spans than `limit`, those in cells first."""
        held = [held.node for held in self._held.values() if held.node is not None]
        return self._tree.known([*held, *(parked.node for parked in self._parked.values())], limit)

    # ── running sequences ────────────────────────────────────────────────────────────────────────────────────────────

    def enter(self, sequence: int, namespace: str | None, tokens: list[int], limit: int) -> int:
        """A sequence begins: it gets what is known of its tokens, at most `limit`. Returns how many that are."""
        assert sequence not in self._held, f"sequence {sequence} is running"
        if namespace is None:
            self._held[sequence] = _Held(None, None)
            return 0
        match = self._tree.match(namespace, tokens)
        self._tree.touch(match.nodes)
        self._quota.used(tenant_of(namespace))
        length = self._bring(sequence, match, min(match.length, limit))
        node = self._tree.hold(sequence, namespace, match, length)
        for shared in node.path():
            shared.hits += 1
        self._held[sequence] = held = _Held(namespace, node)
        if not self._shape.unified:
            held.private = length
        return length

    def advance(self, sequence: int, tokens: list[int]) -> None:
        """Prompt tokens were computed: others may share them from now on."""
        held = self._held[sequence]
        private = len(tokens)
        if held.node is not None:
            held.node, doubled = self._tree.extend(sequence, held.node, tokens)
            private = doubled if self._shape.unified else private
        held.private += private

    def grow(self, sequence: int, count: int) -> None:
        """Generated tokens were computed."""
        self._held[sequence].private += count

    def leave(self, sequence: int, tokens: list[int]) -> None:
        """A sequence ends; `tokens` of it were computed and are worth keeping."""
        held = self._held.pop(sequence)
        if held.namespace is None or held.node is None or not tokens or not self._budget:
            if held.node is not None:
                self._release(sequence, held.node)
            self._operations.append(Forget(sequence))
            return
        copied = self._tree.match(held.namespace, tokens).stored()
        if self._shape.unified and held.node.end >= len(tokens) > copied + self._shape.most_copied:
            # Others can share it as it lies there, so there is time.
            self._parked[sequence] = _Parked(held.namespace, tokens, held.node, held.private, copied)
            return
        node = self._tree.regrip(sequence, held.node, held.namespace, tokens)
        self._parked[sequence] = _Parked(held.namespace, tokens, node, held.private, copied)
        if self._shape.unified:
            self.settle(sequence)

    def settle(self, sequence: int) -> None:
        """Copy what a parked sequence left into host memory, and free its cells."""
        parked = self._parked.pop(sequence)
        self._save(sequence, parked.namespace, parked.tokens)
        self._release(sequence, parked.node)
        self._operations.append(Forget(sequence))

    def settle_some(self) -> None:
        """As much of that, of what was left first, as nobody minds waiting for."""
        sequence, parked = next(iter(self._parked.items()))
        before = len(self._operations)
        while len(self._operations) == before:  # others may have had the same copied, or there is no room for more
            parked.copied += self._shape.most_copied
            if parked.copied >= len(parked.tokens):
                self.settle(sequence)
            else:
                self._save(sequence, parked.namespace, parked.tokens[: parked.copied])

    def move(self, source: int, target: int, length: int) -> None:
        """Give a running sequence another id."""
        held = self._held[target] = self._held.pop(source)
        if held.node is not None:
            self._tree.rename(held.node, source, target)
        self._operations += [Fork(source, target, length), Forget(source)]

    def adopt(self, namespace: str, tokens: list[int], state: Any) -> int:
        """Keep what was computed elsewhere, as far as there is room. Returns how many tokens host memory has now."""
        if self._budget:
            self._keep(namespace, tokens, lambda start, end, span: Adopt(state, start, end, span))
        return self._tree.match(namespace, tokens).stored()

    def erase(self, namespace: str, tokens: list[int], keep: int = 0) -> int:
        """Forget a prefix after the first `keep` tokens, as far as nobody else has it. Returns how many tokens of it
        are no longer in host memory.
        """
        match = self._tree.match(namespace, tokens)
        if match.nodes and match.nodes[-1].end > match.length:
            return 0  # all of it is the beginning of something longer
        before = match.stored()
        self._free(self._tree.forget([node for node in match.nodes if node.start >= keep]))
        return before - self._tree.match(namespace, tokens).stored()

    def take_operations(self) -> list[Operation]:
        """What the engine must do, in this order, before its next step."""
        operations, self._operations = self._operations, []
        return operations

    @property
    def has_operations(self) -> bool:
        return bool(self._operations)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _bring(self, sequence: int, match: Match, length: int) -> int:
        """Put the first `length` matched tokens into the sequence's cells, from wherever is nearest."""
        hot = min(match.hot(), length)
        least = self._shape.least_copied
        if self._shape.unified:
            length = min(length, hot + max(self.free, 0))
            if length - hot < least:
                length = hot
        else:
            # Every stream has cells of its own, so all of it comes from one source: the one that has more.
            stored = min(match.stored(), length)
            length = max(hot, stored)
            if length < least:
                return 0
            if stored >= hot:
                hot = 0
        sources = match.sources(hot)
        if not self._shape.unified:
            sources = [(holder, 0, hot) for holder, _, _ in sources[-1:]]
        self._operations += [Fork(holder, sequence, end, start) for holder, start, end in sources]
        if length > hot:
            self._operations.append(Restore(sequence, hot, match.pieces(hot, length)))
        return length

    def _release(self, sequence: int, node: Node) -> None:
        """Doubles of what it alone held are now what everybody shares."""
        for heir, count in self._tree.release(sequence, node):
            if self._shape.unified and heir in self._held:
                self._held[heir].private -= count
            elif self._shape.unified:
                self._parked[heir].cells -= count

    def _save(self, sequence: int, namespace: str, tokens: list[int]) -> None:
        self._keep(namespace, tokens, lambda start, end, span: Save(sequence, start, end, span))

    def _keep(self, namespace: str, tokens: list[int], copy: Callable[[int, int, int], Operation]) -> None:
        """Have all of a prefix in host memory: `copy` gets what is missing, from a start to an end, as a span."""
        path = self._tree.grow(namespace, self._tree.match(namespace, tokens), tokens)
        path = [part for node in path for part in (self._tree.cut(node, _SPAN) if node.stored is None else [node])]
        protected, tenant = set(path), tenant_of(namespace)
        for index, node in enumerate(path):
            if node.stored is not None:
                continue
            if not self._make_room(tenant, len(node.tokens), protected):
                for left in reversed(path[index:]):
                    self._tree.discard(left)
                del path[index:]
                break
            span, self._next_span = self._next_span, self._next_span + 1
            self._operations.append(copy(node.start, node.end, span))
            self._tree.store(node, span)
            self._spans[span] = tenant, len(node.tokens)
            self._quota.added(tenant, len(node.tokens))
            self.stored += len(node.tokens)
        self._tree.touch(path)

    def _make_room(self, tenant: str, size: int, protected: set[Node]) -> bool:
        """False: there is none without taking what is in use, or within another tenant's share."""
        in_use: set[str] = set()
        while self.stored + size > self._budget:
            victim = self._quota.victim(tenant, size, in_use)
            if victim is None:
                return False
            try:
                span = self._tree.evict(victim, protected)
            except LookupError:
                in_use.add(victim)
                continue
            self.evicted += 1
            if span is not None:
                self._free([span])
        return True

    def _free(self, spans: list[int]) -> None:
        for span in spans:
            tenant, size = self._spans.pop(span)
            self._quota.freed(tenant, size)
            self.stored -= size
            self._operations.append(Drop(span))
