"""The cache of models whose memory can be cut at any token: a prefix tree over cells and host memory.

Cells belong to sequences. When a sequence ends, its new tokens are copied to host memory. A later request with the same
prefix gets it from there, or from a sequence that still has it in cells. In the stream layout a finished sequence slows
nobody, so it stays parked until there is time for the copy or its stream is needed. In unified cells the copy is made
at once or, if it is large, in parts over the next steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from paddock.scheduling.cache import Cache
from paddock.scheduling.cache_view import CacheView
from paddock.scheduling.prefix_tree import Match, Node, PrefixTree
from paddock.scheduling.quota import tenant_of
from paddock.types import Adopt, CacheShape, Drop, Forget, Fork, Operation, Piece, Restore, Save

# Host memory is kept in spans of at most this many tokens. A span that two branches share is freed when both are gone,
# so this bounds what a branch can waste.
_SPAN = 256


@dataclass(slots=True)
class _Held:
    """What a running sequence has in cells."""

    namespace: str | None
    node: Node | None
    """The end of its path in the tree. None: the sequence shares nothing."""
    private: int = 0
    """Cells outside the tree: generated tokens, and duplicates of what another sequence holds. In the stream layout all
    cells of the sequence.
    """


@dataclass(slots=True)
class _Parked:
    """What a finished sequence still has in cells."""

    namespace: str
    tokens: list[int]
    node: Node
    cells: int
    copied: int
    """How many of the tokens are in host memory."""


class PrefixCache(Cache):
    def __init__(self, shape: CacheShape) -> None:
        super().__init__(shape)
        self._tree = PrefixTree()
        self._held: dict[int, _Held] = {}
        self._parked: dict[int, _Parked] = {}
        self._spans: dict[int, tuple[str, int]] = {}
        """Span → its tenant and its tokens."""

    @property
    def stored(self) -> int:
        return self._quota.total

    @property
    def stored_bytes(self) -> int:
        return self.stored * self._shape.bytes_per_token

    @property
    def running(self) -> int:
        return self._private + (self._tree.hot_tokens if self._shape.unified else 0)

    @property
    def parked(self) -> Sequence[int]:
        return list(self._parked)

    @property
    def parked_cells(self) -> int:
        return sum(parked.cells for parked in self._parked.values())

    def lookup(self, namespace: str | None, tokens: list[int], limit: int | None = None) -> int:
        if namespace is None:
            return 0
        return self._tree.match(namespace, tokens[:limit]).length

    def shared(self, namespace: str | None, tokens: list[int]) -> int:
        if namespace is None or not self._shape.unified:
            return 0
        return self._tree.match(namespace, tokens).hot()

    def stored_pieces(self, namespace: str, tokens: list[int]) -> list[Piece]:
        match = self._tree.match(namespace, tokens)
        return match.pieces(0, match.stored())

    def view(self, limit: int) -> CacheView:
        held = [held.node for held in self._held.values() if held.node is not None]
        return self._tree.view([*held, *(parked.node for parked in self._parked.values())], limit)

    # ── sequences ────────────────────────────────────────────────────────────────────────────────────────────────────

    def enter(self, sequence: int, namespace: str | None, tokens: list[int], limit: int) -> int:
        assert sequence not in self._held, f"sequence {sequence} is running"
        if namespace is None:
            self._held[sequence] = _Held(None, None)
            return 0
        match = self._tree.match(namespace, tokens)
        self._tree.touch(match.nodes)
        self._quota.touch(tenant_of(namespace))
        length = self._load(sequence, match, min(match.length, limit))
        node = self._tree.hold(sequence, namespace, match, length)
        for shared in node.path():
            shared.hits += 1
        self._held[sequence] = _Held(namespace, node, 0 if self._shape.unified else length)
        return length

    def advance(self, sequence: int, tokens: list[int]) -> None:
        held = self._held[sequence]
        private = len(tokens)
        if held.node is not None:
            held.node, duplicates = self._tree.extend(sequence, held.node, tokens)
            private = duplicates if self._shape.unified else private
        held.private += private

    def grow(self, sequence: int, count: int) -> None:
        self._held[sequence].private += count

    def leave(self, sequence: int, tokens: list[int]) -> None:
        held = self._held.pop(sequence)
        if held.namespace is None or held.node is None or not tokens or not self._quota.budget:
            if held.node is not None:
                self._release(sequence, held.node)
            self._operations.append(Forget(sequence))
            return
        copied = self._tree.match(held.namespace, tokens).stored()
        if self._shape.unified and held.node.end >= len(tokens) > copied + self._shape.max_copied:
            # Too large to copy in one step. Others can share the cells meanwhile.
            self._parked[sequence] = _Parked(held.namespace, tokens, held.node, held.private, copied)
            return
        node = self._tree.trim(sequence, held.node, held.namespace, tokens)
        self._parked[sequence] = _Parked(held.namespace, tokens, node, held.private, copied)
        if self._shape.unified:
            self.flush(sequence)

    def flush(self, sequence: int) -> None:
        parked = self._parked.pop(sequence)
        self._save(sequence, parked.namespace, parked.tokens)
        self._release(sequence, parked.node)
        self._operations.append(Forget(sequence))

    def flush_some(self) -> None:
        sequence, parked = next(iter(self._parked.items()))
        before = len(self._operations)
        while len(self._operations) == before:  # a part may be stored already, or find no room
            parked.copied += self._shape.max_copied
            if parked.copied >= len(parked.tokens):
                self.flush(sequence)
            else:
                self._save(sequence, parked.namespace, parked.tokens[: parked.copied])

    def move(self, source: int, target: int, length: int) -> None:
        held = self._held[target] = self._held.pop(source)
        if held.node is not None:
            self._tree.rename(held.node, source, target)
        self._operations += [Fork(source, target, length), Forget(source)]

    def _load(self, sequence: int, match: Match, length: int) -> int:
        """Load up to `length` matched tokens into the sequence's cells. Returns how many."""
        hot = min(match.hot(), length)
        least = self._shape.min_copied
        if self._shape.unified:
            length = min(length, hot + max(self.free, 0))
            if length - hot < least:
                length = hot
        else:
            # A stream has cells of its own, so everything comes from one source: the one that has more.
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
        """Free a sequence's cells. Where another sequence has duplicates of them, these become the shared cells."""
        for new_holder, count in self._tree.release(sequence, node):
            if self._shape.unified and new_holder in self._held:
                self._held[new_holder].private -= count
            elif self._shape.unified:
                self._parked[new_holder].cells -= count

    # ── host memory ──────────────────────────────────────────────────────────────────────────────────────────────────

    def adopt(self, namespace: str, tokens: list[int], state: Any) -> int:
        if self._quota.budget:
            self._store(namespace, tokens, lambda start, end, span: Adopt(state, start, end, span))
        return self._tree.match(namespace, tokens).stored()

    def erase(self, namespace: str, tokens: list[int], keep: int = 0) -> int:
        match = self._tree.match(namespace, tokens)
        if match.nodes and match.nodes[-1].end > match.length:
            return 0  # a longer prefix contains all of it
        before = match.stored()
        for span in self._tree.forget([node for node in match.nodes if node.start >= keep]):
            self._drop(span)
        return before - self._tree.match(namespace, tokens).stored()

    def _save(self, sequence: int, namespace: str, tokens: list[int]) -> None:
        self._store(namespace, tokens, lambda start, end, span: Save(sequence, start, end, span))

    def _store(self, namespace: str, tokens: list[int], copy: Callable[[int, int, int], Operation]) -> None:
        """Store a prefix in host memory. `copy` makes the operation for each part that is missing, from its start, end
        and span.
        """
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
            span = next(self._span_ids)
            self._operations.append(copy(node.start, node.end, span))
            self._tree.store(node, span)
            self._spans[span] = tenant, len(node.tokens)
            self._quota.add(tenant, len(node.tokens))
        self._tree.touch(path)

    def _budget_of(self, ram_bytes: int) -> int:
        return ram_bytes // self._shape.bytes_per_token if self._shape.bytes_per_token else 0

    def _evict(self, tenant: str, protected: Collection[Node]) -> None:
        span = self._tree.evict(tenant, protected)
        if span is not None:
            self._drop(span)

    def _drop(self, span: int) -> None:
        self._quota.remove(*self._spans.pop(span))
        self._operations.append(Drop(span))

    # ── integrity ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _private(self) -> int:
        return sum(held.private for held in self._held.values())

    def _count_running(self) -> int:
        hot = sum(len(node.tokens) for node in self._tree.nodes() if node.holders)
        return self._private + (hot if self._shape.unified else 0)

    def _count_stored(self) -> int:
        spans = {node.stored.span for node in self._tree.nodes() if node.stored is not None}
        return sum(self._spans[span][1] for span in spans)
