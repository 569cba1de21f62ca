"""The cache of models whose memory cannot be cut: snapshots of whole states, taken at chosen positions.

A sequence starts from the longest snapshot that is a prefix of its tokens, or as a copy of a running sequence that is
at just such a position.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from paddock.scheduling.cache import Cache
from paddock.scheduling.cache_view import CacheView, first_nodes
from paddock.scheduling.quota import tenant_of
from paddock.scheduling.snapshot_tree import SnapshotNode, SnapshotTree
from paddock.types import CacheShape, Drop, Forget, Fork, Piece, Restore, Save, TenantCache


@dataclass(slots=True, eq=False)
class _Cells:
    """Cells that were filled together. Copies of the sequence share them."""

    count: int
    holders: int = 1


@dataclass(slots=True)
class _Held:
    """What a running sequence has in cells."""

    namespace: str | None
    tokens: list[int]
    cells: list[_Cells] = field(default_factory=list)
    generated: int = 0
    """How many tokens follow `tokens`."""

    @property
    def size(self) -> int:
        return len(self.tokens) + self.generated


class SnapshotCache(Cache):
    def __init__(self, shape: CacheShape) -> None:
        super().__init__(shape)
        self._tree: SnapshotTree = SnapshotTree()
        self._kept: OrderedDict[int, SnapshotNode] = OrderedDict()
        """Snapshot → its node in the tree, the least recently used first."""
        self._held: dict[int, _Held] = {}
        self._used = 0
        self._stored = 0

    @property
    def used(self) -> int:
        """An upper bound: windows and recurrent states need fewer cells."""
        return self._used

    @property
    def stored(self) -> int:
        return self._stored

    @property
    def stored_bytes(self) -> int:
        return self._quota.total

    def lookup(self, namespace: str | None, tokens: list[int], limit: int | None = None) -> int:
        if namespace is None:
            return 0
        limit = len(tokens) if limit is None else limit
        node = self._tree.longest(namespace, tokens, limit)
        return max(self._hot(namespace, tokens, limit)[0], 0 if node is None else node.end)

    def shared(self, namespace: str | None, tokens: list[int]) -> int:
        if namespace is None or not self._shape.unified:
            return 0
        return self._hot(namespace, tokens, len(tokens) - 1)[0]

    def branch(self, namespace: str, tokens: list[int]) -> int:
        """How many of the first tokens are those of a stored sequence, with or without a snapshot at that point."""
        return self._tree.common(namespace, tokens)

    def contents(self) -> list[TenantCache]:
        """The bytes of cells are not known: windows and recurrent states need fewer."""
        hot: Counter[str] = Counter()
        stored: Counter[str] = Counter()
        for held in self._held.values():
            if held.namespace is not None:
                hot[tenant_of(held.namespace)] += held.size
        for node in self._kept.values():
            stored[tenant_of(node.namespace)] += node.end
        return [
            TenantCache(tenant, hot[tenant], 0, stored[tenant], self._quota.held(tenant))
            for tenant in sorted(hot | stored)
        ]

    def stored_pieces(self, namespace: str, tokens: list[int]) -> list[Piece]:
        """None: a snapshot is valid only in the context it was taken from."""
        return []

    def view(self, limit: int) -> CacheView:
        """Running sequences are not shown, only the snapshots they left."""
        nodes = first_nodes((node.path() for node in reversed(self._kept.values())), limit)
        return CacheView(
            [node.span(stored=bool(node.snapshot)) for node in nodes],
            omitted=len(self._kept) - sum(node.snapshot in self._kept for node in nodes),
        )

    # ── sequences ────────────────────────────────────────────────────────────────────────────────────────────────────

    def enter(self, sequence: int, namespace: str | None, tokens: list[int], limit: int) -> int:
        assert sequence not in self._held, f"sequence {sequence} is running"
        held = self._held[sequence] = _Held(namespace, [])
        if namespace is None:
            return 0
        length, source = self._hot(namespace, tokens, limit)
        room = min(limit, self.free) if self._shape.unified else limit
        node = self._tree.longest(namespace, tokens, room)
        # Unified cells are shared without a copy. Streams need a copy in any case, and the snapshot is half of it.
        if node is not None and (node.end > length or (node.end == length and not self._shape.unified)):
            length = node.end
            self._kept.move_to_end(node.snapshot)
            self._quota.touch(tenant_of(namespace))
            for passed in node.path():
                passed.hits += 1
            self._operations.append(Restore(sequence, 0, [Piece(node.snapshot, 0, length)]))
            self.restored += length
            self._fill(held, length)
        elif length:
            self._operations.append(Fork(source, sequence, length))
            self._share(self._held[source], held)
        held.tokens = tokens[:length]
        return length

    def advance(self, sequence: int, tokens: list[int]) -> None:
        held = self._held[sequence]
        held.tokens += tokens
        self._fill(held, len(tokens))

    def grow(self, sequence: int, count: int) -> None:
        held = self._held[sequence]
        held.generated += count
        self._fill(held, count)

    def take_snapshot(self, sequence: int) -> None:
        """Copy the state of a sequence that is still in its prompt."""
        held = self._held[sequence]
        if held.namespace is not None and not held.generated:
            self._save(sequence, held.namespace, held.tokens)

    def leave(self, sequence: int, tokens: list[int], stored: int) -> None:
        """A snapshot is taken if all that the sequence holds is to be stored."""
        held = self._held.pop(sequence)
        if held.namespace is not None and stored == len(tokens) == held.size:
            self._save(sequence, held.namespace, tokens)
        self._release(held)
        self._operations.append(Forget(sequence))

    def move(self, source: int, target: int, length: int) -> None:
        self._held[target] = self._held.pop(source)
        self._operations += [Fork(source, target, length), Forget(source)]

    def _hot(self, namespace: str, tokens: list[int], limit: int) -> tuple[int, int]:
        """The longest prefix, at most `limit`, that is all that a running sequence holds, and that sequence."""
        return max(
            (
                (len(held.tokens), sequence)
                for sequence, held in self._held.items()
                if held.namespace == namespace
                and not held.generated
                and 0 < len(held.tokens) <= limit
                and tokens[: len(held.tokens)] == held.tokens
            ),
            default=(0, -1),
        )

    def _fill(self, held: _Held, count: int) -> None:
        self._used += count
        if held.cells and held.cells[-1].holders == 1:
            held.cells[-1].count += count
        else:
            held.cells.append(_Cells(count))

    def _share(self, source: _Held, target: _Held) -> None:
        if not self._shape.unified:
            self._fill(target, source.size)
            return
        target.cells = list(source.cells)
        for cells in target.cells:
            cells.holders += 1

    def _release(self, held: _Held) -> None:
        for cells in held.cells:
            cells.holders -= 1
            if not cells.holders:
                self._used -= cells.count

    # ── host memory ──────────────────────────────────────────────────────────────────────────────────────────────────

    def adopt(self, namespace: str, tokens: list[int], state: Any, *, start: int = 0, has_file: bool = False) -> int:
        """Not possible: a snapshot is valid only in the context it was taken from."""
        return 0

    def erase(self, namespace: str, tokens: list[int], keep: int = 0) -> int:
        before = self._stored_length(namespace, tokens)
        for snapshot in self._tree.unshared(namespace, tokens):
            if self._kept[snapshot].end > keep:
                self._drop(snapshot)
        return before - self._stored_length(namespace, tokens)

    def _stored_length(self, namespace: str, tokens: list[int]) -> int:
        node = self._tree.longest(namespace, tokens, len(tokens))
        return 0 if node is None else node.end

    def _save(self, sequence: int, namespace: str, tokens: list[int]) -> None:
        size = self._shape.snapshot.bytes(len(tokens))
        if not tokens or size > self._quota.budget:
            return
        node = self._tree.longest(namespace, tokens, len(tokens))
        if node is not None and node.end == len(tokens):
            self._kept.move_to_end(node.snapshot)
            return
        tenant = tenant_of(namespace)
        if not self._make_room(tenant, size):
            return
        snapshot = next(self._span_ids)
        self._kept[snapshot] = self._tree.add(namespace, tokens, snapshot)
        self._operations.append(Save(sequence, 0, len(tokens), snapshot))
        self._stored += len(tokens)
        self._quota.add(tenant, size)

    def _budget_of(self, ram_bytes: int) -> int:
        return ram_bytes

    def _evict(self, tenant: str, protected: Collection[Any]) -> None:
        self._drop(next(kept for kept, node in self._kept.items() if tenant_of(node.namespace) == tenant))

    def _drop(self, snapshot: int) -> None:
        node = self._kept.pop(snapshot)
        self._tree.remove(node)
        self._operations.append(Drop(snapshot))
        self._stored -= node.end
        self._quota.remove(tenant_of(node.namespace), self._shape.snapshot.bytes(node.end))

    # ── integrity ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _count_used(self) -> int:
        return sum(cells.count for cells in {cells for held in self._held.values() for cells in held.cells})

    def _count_stored(self) -> int:
        return sum(self._shape.snapshot.bytes(node.end) for node in self._kept.values())
