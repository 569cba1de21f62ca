"""Prefixes in host memory: spans of the prefix tree, and the buffer that copies go through.

Everything is counted: spans, the buffer, and with a disk also what is being read or written. Together they never exceed
the bound. Spans that are evicted before they are written have a room of their own, because eviction must free memory at
once. For a read, room is made before it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from paddock.scheduling.cache import Cache
from paddock.scheduling.lent_spans import LentSpans
from paddock.scheduling.prefix_tree import Node, PrefixTree
from paddock.scheduling.quota import tenant_of
from paddock.scheduling.unwritten import UnwrittenSpans
from paddock.types import Adopt, CacheShape, Drop, Operation, Piece, Reserve, TenantCache

# Host memory is kept in spans of at most this many tokens. A span that two branches share is freed when both are gone,
# so this bounds what a branch can waste.
SPAN = 256
# A buffer for copies of at most this part of host memory is kept while nothing runs, and a larger one freed.
_SMALL_BUFFER = 1 / 8
# The room for evicted spans that wait for the writer is at most this part of host memory, and at most so many bytes.
_WRITER_PART = 8
_WRITER_BYTES = 64 << 20


class StoredPrefixes(Cache):
    def __init__(self, shape: CacheShape) -> None:
        self.unwritten = UnwrittenSpans()
        self._has_disk = False
        super().__init__(shape)
        self._tree: PrefixTree = PrefixTree()
        self._spans: dict[int, tuple[str, int]] = {}
        """Span → its tenant and its tokens."""
        self._lent = LentSpans()
        self._tree.spared = self._lent
        self._reading = 0
        """Tokens that are being read from a disk, or were read and are not stored yet."""

    @property
    def stored(self) -> int:
        return self._quota.total

    @property
    def max_stored(self) -> int:
        """The most tokens in host memory."""
        return self._quota.budget

    @property
    def aside(self) -> int:
        """Bytes of prefixes that other threads hold: they are being read or written."""
        return (self._reading + self._lent.dropped) * self._shape.bytes_per_token

    @property
    def stored_bytes(self) -> int:
        return (self.stored + self._quota.reserved) * self._shape.bytes_per_token + self.aside

    def state_size(self, tokens: int) -> int:
        """The bytes of a whole state in host memory."""
        return tokens * self._shape.bytes_per_token

    def lookup(self, namespace: str | None, tokens: list[int], limit: int | None = None) -> int:
        if namespace is None:
            return 0
        return self._tree.match(namespace, tokens[:limit]).length

    def contents(self) -> list[TenantCache]:
        hot, stored = self._tree.tokens_of_tenants()
        size = self._shape.bytes_per_token
        return [
            TenantCache(tenant, hot[tenant], hot[tenant] * size, stored[tenant], self._quota.held(tenant) * size)
            for tenant in sorted(hot)
        ]

    def stored_pieces(self, namespace: str, tokens: list[int]) -> list[Piece]:
        match = self._tree.match(namespace, tokens)
        return match.pieces(0, match.stored())

    def adopt(self, namespace: str, tokens: list[int], state: Any, *, start: int = 0, has_file: bool = False) -> int:
        if self._quota.budget and self._tree.match(namespace, tokens).stored() >= start:
            shifted = lambda at, end, span: Adopt(state, at - start, end - start, span)  # noqa: E731
            self._store(namespace, tokens, shifted, has_file=has_file)
        return self._tree.match(namespace, tokens).stored()

    def pin(self, pieces: Sequence[Piece]) -> None:
        self._tree.pin({piece.span for piece in pieces})

    def unpin(self, pieces: Sequence[Piece]) -> None:
        self._tree.unpin({piece.span for piece in pieces})
        self.resize(self._ram_bytes)  # they may have been all that did not fit

    # ── a disk ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def use_disk(self) -> None:
        """Note which spans have no file, and keep room for those that are evicted before they are written."""
        self._has_disk = self.unwritten.is_on = True
        self.resize(self._ram_bytes)

    def can_lend(self, pieces: Sequence[Piece]) -> bool:
        """Whether the room for evicted spans has room for those of these pieces."""
        return self._lent.dropped + self._lent.cost(pieces) <= self._writer_room(self._ram_bytes)

    def lend(self, pieces: Sequence[Piece]) -> None:
        """Another thread reads these pieces. They are held until it gives them back, and are evicted only after that.
        Spans that were evicted can be lent until the engine carries out its operations.
        """
        self._lent.lend(pieces)
        self._count_aside()

    def take_back(self, pieces: Sequence[Piece]) -> None:
        self._lent.take_back(pieces)
        self._count_aside()
        self._evict_excess()  # they may have been all that did not fit

    def begin_operations(self) -> None:
        """The engine carries out its operations now: what they drop can no longer be lent."""
        self._lent.forget_evicted()

    def begin_read(self, namespace: str, tokens: list[int], size: int) -> bool:
        """Make room for `size` tokens that continue a prefix of these tokens. False: there is none."""
        protected = set(self._tree.match(namespace, tokens).nodes)
        if not self._evict_until_fits(size, self._quota.largest, protected):
            return False
        self._reading += size
        self._count_aside()
        return True

    def end_read(self, size: int) -> None:
        """The read tokens are stored, or not used."""
        self._reading -= size
        self._count_aside()

    def clear(self, tenant: str | None = None) -> None:
        self._tree.spared = ()  # what is being written is dropped too
        super().clear(tenant)
        self._tree.spared = self._lent

    def resize(self, ram_bytes: int) -> None:
        self._ram_bytes = ram_bytes
        self._count_aside()
        super().resize(ram_bytes)

    def _count_aside(self) -> None:
        over = self._lent.dropped - self._writer_room(self._ram_bytes)
        self._quota.aside = self._reading + max(over, 0)

    @property
    def _writer_bytes(self) -> int:
        """The most bytes of evicted spans that may wait for the writer."""
        return _WRITER_BYTES

    def _writer_room(self, ram_bytes: int) -> int:
        """Tokens of evicted spans that may wait for the writer."""
        size = min(ram_bytes // _WRITER_PART, self._writer_bytes) if self._has_disk else 0
        return size // self._shape.bytes_per_token if self._shape.bytes_per_token else 0

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _reserve(self, tokens: int, protected: Collection[Node], *, evicts: bool = True) -> bool:
        """Have a buffer for a copy of so many tokens. False: there is no room for it."""
        size = self._shape.buffer_for(tokens)
        more = size - self._quota.reserved
        if more <= 0:
            return True
        if not self._quota.fits(more) and not (
            evicts and self._evict_until_fits(more, self._quota.largest, set(protected))
        ):
            return False
        self._quota.reserved = size
        self._operations.append(Reserve(size))
        return True

    @property
    def _has_large_buffer(self) -> bool:
        return self._quota.reserved > self._quota.budget * _SMALL_BUFFER

    def _release_buffer(self) -> None:
        if self._has_large_buffer:
            self._quota.reserved = 0
            self._operations.append(Reserve(0))

    def _store(
        self,
        namespace: str,
        tokens: list[int],
        copy: Callable[[int, int, int], Operation],
        *,
        through: int = 0,
        evicts: bool = True,
        has_file: bool = False,
    ) -> None:
        """Store a prefix in host memory. `copy` makes the operation for each part that is missing, from its start, end
        and span. It goes through a buffer for `through` tokens. Unless it `evicts` others, only what is free is used.
        """
        path = self._tree.grow(namespace, self._tree.match(namespace, tokens), tokens)
        path = [part for node in path for part in (self._tree.cut(node, SPAN) if node.stored is None else [node])]
        protected, tenant = set(path), tenant_of(namespace)
        copies: list[Operation] = []
        for index, node in enumerate(path):
            if node.stored is not None:
                continue
            has_buffer = not through or self._reserve(through, protected, evicts=evicts)
            has_room = has_buffer and self._quota.fits(len(node.tokens))
            if not has_room and not (has_buffer and evicts and self._make_room(tenant, len(node.tokens), protected)):
                for left in reversed(path[index:]):
                    self._tree.discard(left)
                del path[index:]
                break
            span = next(self._span_ids)
            copies.append(copy(node.start, node.end, span))
            self._tree.store(node, span)
            self._spans[span] = tenant, len(node.tokens)
            self._quota.add(tenant, len(node.tokens))
            if not has_file:
                self.unwritten.add(span, node)
        self._tree.touch(path)
        self._operations += copies  # after the evictions, so that the engine reads adjacent parts at once

    def _budget_of(self, ram_bytes: int) -> int:
        size = self._shape.bytes_per_token
        return ram_bytes // size - self._writer_room(ram_bytes) if size else 0

    def _drop(self, span: int) -> None:
        self.unwritten.drop(span)
        self._forget_stored(span, *self._spans.pop(span))
        self._operations.append(Drop(span))

    def _forget_stored(self, name: int, tenant: str, size: int) -> None:
        self._quota.remove(tenant, size)
        if self._has_disk:
            self._lent.drop(name, size)
            self._count_aside()

    def _count_stored(self) -> int:
        spans = {node.stored.span for node in self._tree.nodes() if node.stored is not None}
        return sum(self._spans[span][1] for span in spans)
