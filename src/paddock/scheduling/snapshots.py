"""The cache of models whose memory cannot be cut: whole states, kept at chosen places of the sequences they belong to.

It answers to the scheduler as `cache.py` does. A sequence begins with the longest kept state whose tokens are a prefix
of its own, or as a copy of a running sequence that stands at just such a place.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paddock.scheduling.known import Known, KnownSpan, first_of
from paddock.scheduling.quota import Quota, tenant_of
from paddock.scheduling.snapshot_tree import Place, SnapshotTree
from paddock.types import CacheShape, Drop, Forget, Fork, Operation, Piece, Restore, Save, SnapshotSize


@dataclass(slots=True, eq=False)
class _Cells:
    """Cells that were filled together and are shared by whoever was copied since."""

    count: int
    holders: int = 1


@dataclass(slots=True)
class _Held:
    """What one running sequence has in cells."""

    namespace: str | None
    tokens: list[int]
    cells: list[_Cells] = field(default_factory=list)
    generated: int = 0
    """Tokens that came after `tokens`."""

    @property
    def size(self) -> int:
        return len(self.tokens) + self.generated


class SnapshotCache:
    def __init__(self, shape: CacheShape) -> None:
        self._shape = shape
        self._tree = SnapshotTree()
        self._kept: OrderedDict[int, Place] = OrderedDict()
        """Snapshot → where it was taken; the least recently used first."""
        self._quota = Quota(shape.ram_bytes)
        self._held: dict[int, _Held] = {}
        self._operations: list[Operation] = []
        self._next_snapshot = 1
        self.running = 0
        """Cells that running sequences have. An upper bound where windows and recurrent states need fewer."""
        self.stored = 0
        """Tokens that the snapshots in host memory stand for."""
        self.stored_bytes = 0
        self.evicted = 0
        self.parked: Sequence[int] = ()
        """Nothing is left to be settled: a state is copied when its sequence stands there, or never."""
        self.parked_cells = 0
        self._budget = shape.ram_bytes

    def resize(self, ram_bytes: int) -> None:
        """From now on host memory holds no more than this; what is too much is evicted."""
        self._budget = ram_bytes
        self._quota.resize(ram_bytes)
        while self.stored_bytes > ram_bytes and (victim := self._quota.largest()) is not None:
            self._drop_one_of(victim)

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def free(self) -> int:
        """Cells that nobody has. With a stream for each sequence they are not interchangeable."""
        return self._shape.cells - self.running

    def lookup(self, namespace: str | None, tokens: list[int], limit: int | None = None) -> int:
        """How many of the first tokens, at most `limit`, need not be computed."""
        if namespace is None:
            return 0
        limit = len(tokens) if limit is None else limit
        place = self._tree.longest(namespace, tokens, limit)
        return max(self._hot(namespace, tokens, limit)[0], 0 if place is None else place.end)

    def shared(self, namespace: str | None, tokens: list[int]) -> int:
        """How many of the first tokens need no cells of their own."""
        if namespace is None or not self._shape.unified:
            return 0
        return self._hot(namespace, tokens, len(tokens) - 1)[0]

    def branch(self, namespace: str | None, tokens: list[int]) -> int:
        """How many of the first tokens are those of a kept sequence, with a snapshot at that place or without."""
        if namespace is None:
            return 0
        return self._tree.common(namespace, tokens)

    def known(self, limit: int) -> Known:
        """For somebody who looks on: no more places than `limit`, those with the states that were used last. Whoever
        runs has left them behind.
        """
        places = first_of((place.path() for place in reversed(self._kept.values())), limit)
        return Known(
            [_shown(place) for place in places],
            omitted=len(self._kept) - sum(place.snapshot in self._kept for place in places),
        )

    # ── running sequences ────────────────────────────────────────────────────────────────────────────────────────────

    def enter(self, sequence: int, namespace: str | None, tokens: list[int], limit: int) -> int:
        """A sequence begins: it gets what is known of its tokens, at most `limit`. Returns how many that are."""
        assert sequence not in self._held, f"sequence {sequence} is running"
        held = self._held[sequence] = _Held(namespace, [])
        if namespace is None:
            return 0
        length, source = self._hot(namespace, tokens, limit)
        room = min(limit, self.free) if self._shape.unified else limit
        place = self._tree.longest(namespace, tokens, room)
        # Unified cells are shared at once, where streams need a copy either way and the kept one is half done.
        if place is not None and (place.end > length or (place.end == length and not self._shape.unified)):
            length = place.end
            self._kept.move_to_end(place.snapshot)
            self._quota.used(tenant_of(namespace))
            for passed in place.path():
                passed.hits += 1
            self._operations.append(Restore(sequence, 0, [Piece(place.snapshot, 0, length)]))
            self._fill(held, length)
        elif length:
            self._operations.append(Fork(source, sequence, length))
            self._share(self._held[source], held)
        held.tokens = tokens[:length]
        return length

    def advance(self, sequence: int, tokens: list[int]) -> None:
        """Prompt tokens were computed."""
        held = self._held[sequence]
        held.tokens += tokens
        self._fill(held, len(tokens))

    def grow(self, sequence: int, count: int) -> None:
        """Generated tokens were computed."""
        held = self._held[sequence]
        held.generated += count
        self._fill(held, count)

    def keep(self, sequence: int) -> None:
        """A sequence stands where its state is worth a copy, if it is still in its prompt."""
        held = self._held[sequence]
        if held.namespace is not None and not held.generated:
            self._save(sequence, held.namespace, held.tokens)

    def leave(self, sequence: int, tokens: list[int]) -> None:
        """A sequence ends. If `tokens`, those worth keeping, are all that it holds, its state is kept."""
        held = self._held.pop(sequence)
        if held.namespace is not None and len(tokens) == held.size:
            self._save(sequence, held.namespace, tokens)
        self._release(held)
        self._operations.append(Forget(sequence))

    def settle(self, sequence: int) -> None:
        raise AssertionError(f"sequence {sequence} was never parked")

    def settle_some(self) -> None:
        raise AssertionError("nothing was ever parked")

    def move(self, source: int, target: int, length: int) -> None:
        """Give a running sequence another id."""
        self._held[target] = self._held.pop(source)
        self._operations += [Fork(source, target, length), Forget(source)]

    def erase(self, namespace: str, tokens: list[int], keep: int = 0) -> int:
        """Forget a prefix after the first `keep` tokens, as far as nobody else has it. Returns how many tokens of it
        are no longer in host memory.
        """
        before = self._kept_length(namespace, tokens)
        for snapshot in self._tree.alone(namespace, tokens):
            if self._kept[snapshot].end > keep:
                self._drop(snapshot)
        return before - self._kept_length(namespace, tokens)

    def stored_pieces(self, namespace: str, tokens: list[int]) -> list[Piece]:
        """None that could be given away: a whole state means something to the context it was taken from, and to no
        other.
        """
        return []

    def adopt(self, namespace: str, tokens: list[int], state: Any) -> int:
        """And none is taken from elsewhere."""
        return 0

    def take_operations(self) -> list[Operation]:
        """What the engine must do, in this order, before its next step."""
        operations, self._operations = self._operations, []
        return operations

    @property
    def has_operations(self) -> bool:
        return bool(self._operations)

    # ── cells ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _hot(self, namespace: str, tokens: list[int], limit: int) -> tuple[int, int]:
        """The longest prefix, at most `limit`, that is all that some running sequence holds, and that sequence."""
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
        self.running += count
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
                self.running -= cells.count

    # ── host memory ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _kept_length(self, namespace: str, tokens: list[int]) -> int:
        place = self._tree.longest(namespace, tokens, len(tokens))
        return 0 if place is None else place.end

    def _save(self, sequence: int, namespace: str, tokens: list[int]) -> None:
        size = snapshot_bytes(self._shape.snapshot, len(tokens))
        if not tokens or size > self._budget:
            return
        place = self._tree.longest(namespace, tokens, len(tokens))
        if place is not None and place.end == len(tokens):
            self._kept.move_to_end(place.snapshot)
            return
        tenant = tenant_of(namespace)
        while self.stored_bytes + size > self._budget:
            victim = self._quota.victim(tenant, size)
            if victim is None:
                return
            self._drop_one_of(victim)
        snapshot, self._next_snapshot = self._next_snapshot, self._next_snapshot + 1
        self._kept[snapshot] = self._tree.add(namespace, tokens, snapshot)
        self._operations.append(Save(sequence, 0, len(tokens), snapshot))
        self.stored += len(tokens)
        self.stored_bytes += size
        self._quota.added(tenant, size)

    def _drop_one_of(self, tenant: str) -> None:
        self.evicted += 1
        self._drop(next(kept for kept, place in self._kept.items() if tenant_of(place.namespace) == tenant))

    def _drop(self, snapshot: int) -> None:
        place = self._kept.pop(snapshot)
        self._tree.remove(place)
        self._operations.append(Drop(snapshot))
        self.stored -= place.end
        size = snapshot_bytes(self._shape.snapshot, place.end)
        self.stored_bytes -= size
        self._quota.freed(tenant_of(place.namespace), size)


def _shown(place: Place) -> KnownSpan:
    assert place.parent is not None, "roots are not shown"
    return KnownSpan(
        place.id,
        None if place.parent.parent is None else place.parent.id,
        place.parent.end,
        place.tokens,
        place.namespace,
        stored=place.snapshot != 0,
        hits=place.hits,
    )


def snapshot_bytes(size: SnapshotSize, tokens: int) -> int:
    """What the whole state of so many tokens takes."""
    return size.fixed + size.per_token * tokens + size.per_window_token * min(tokens, size.window)
