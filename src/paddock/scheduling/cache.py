"""What every cache has: counts of cells, a bounded host memory with eviction, and the operations for the engine.

A cache decides and the engine acts: each decision is an operation that the engine carries out before its next step.
`prefix_cache.py` is the cache of models whose memory can be cut at any token, `snapshot_cache.py` of all others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from itertools import count
from typing import Any

from paddock.scheduling.cache_view import CacheView
from paddock.scheduling.quota import Quota
from paddock.scheduling.radix_tree import RadixTree
from paddock.types import CacheShape, Nearest, Operation, Piece, TenantCache


class Cache(ABC):
    _tree: RadixTree[Any]

    def __init__(self, shape: CacheShape) -> None:
        self._shape = shape
        self._operations: list[Operation] = []
        self._quota = Quota(self._budget_of(shape.ram_bytes))
        self._span_ids = count(1)
        self._ram_bytes = shape.ram_bytes
        self.evicted = 0
        self.restored = 0
        """Tokens that running sequences have got from host memory so far."""

    # ── cells ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def free(self) -> int:
        """Cells that no sequence has. With one stream for each sequence they are not interchangeable."""
        return self._shape.cells - self.used

    @property
    @abstractmethod
    def used(self) -> int:
        """Cells of running and of resident sequences."""

    @property
    def resident(self) -> Sequence[int]:
        """Finished sequences that still have their cells, in the order in which they should be reclaimed."""
        return ()

    @property
    def idle_cells(self) -> int:
        """Cells that only resident sequences have."""
        return 0

    # ── lookups ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def lookup(self, namespace: str | None, tokens: list[int], limit: int | None = None) -> int:
        """How many of the first tokens, at most `limit`, are cached."""

    def nearest(self, namespace: str | None, tokens: list[int], following: int) -> Nearest:
        """The cached sequence that shares most with the tokens, with at most `following` tokens after that."""
        return Nearest() if namespace is None else self._tree.nearest(namespace, tokens, following)

    @abstractmethod
    def shared(self, namespace: str | None, tokens: list[int]) -> int:
        """How many of the first tokens need no cells of their own."""

    @abstractmethod
    def view(self, limit: int) -> CacheView:
        """At most `limit` spans for display, the most recently used first."""

    @abstractmethod
    def contents(self) -> list[TenantCache]:
        """What is kept for each tenant, counted one by one."""

    @abstractmethod
    def stored_pieces(self, namespace: str, tokens: list[int]) -> list[Piece]:
        """The pieces of host memory that hold the first of these tokens, in order."""

    # ── sequences ────────────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def enter(self, sequence: int, namespace: str | None, tokens: list[int], limit: int) -> int:
        """Start a sequence with the cached prefix of its tokens, at most `limit`. Returns the length of the prefix."""

    @abstractmethod
    def advance(self, sequence: int, tokens: list[int]) -> None:
        """Add computed prompt tokens to a sequence. Others may share them from now on."""

    @abstractmethod
    def grow(self, sequence: int, count: int) -> None:
        """Add computed generated tokens to a sequence."""

    def is_restoring(self, sequence: int) -> bool:
        """Whether the prefix of a running sequence is so large that the next steps restore more of it."""
        return False

    def restore_more(self, sequence: int, tokens: list[int], start: int, limit: int) -> int:
        """Continue a large restore of a sequence that holds `start` tokens. Returns how many more it holds now."""
        return 0

    @abstractmethod
    def leave(self, sequence: int, tokens: list[int], stored: int) -> None:
        """End a sequence. `tokens` are the computed tokens worth keeping, and the first `stored` are worth a copy in
        host memory.
        """

    @abstractmethod
    def move(self, source: int, target: int, length: int) -> None:
        """Give a sequence another id."""

    # ── resident sequences ───────────────────────────────────────────────────────────────────────────────────────────

    def home(self, namespace: str | None, tokens: list[int]) -> int | None:
        """The resident sequence that a new one with these tokens should continue. None: it should share or copy."""
        return None

    def is_worth_sparing(self, sequence: int, namespace: str | None, tokens: list[int]) -> bool:
        """Whether a copy on the device costs less than what a resident sequence loses if these tokens continue it."""
        return False

    def is_stored(self, sequence: int) -> bool:
        """Whether host memory has all of a resident sequence that is worth a copy."""
        return False

    def touch(self, namespace: str | None, tokens: list[int]) -> Collection[int]:
        """Reclaim the residents that have the cached prefix of these tokens last. Returns them."""
        return ()

    def length(self, sequence: int) -> int:
        """How many tokens a resident sequence holds."""
        return 0

    def reclaim(self, sequence: int) -> None:
        """Free the cells of a resident sequence. What host memory lacks is copied first."""
        raise AssertionError(f"sequence {sequence} is not resident")

    def reclaim_seconds(self, sequence: int) -> float:
        """What that costs, now or when its tokens are wanted again; 0 while prices are unknown."""
        return 0.0

    def move_seconds(self, length: int) -> float:
        """What it costs to give a sequence of so many tokens another id; 0 while prices are unknown."""
        return 0.0

    @property
    def is_written_back(self) -> bool:
        """Whether all resident sequences have been copied to host memory."""
        return True

    @property
    def next_write_back(self) -> int:
        """The bytes that the next `write_back_some` copies, about."""
        return 0

    def write_back_some(self) -> None:
        """Copy the next part of a resident sequence to host memory, if one lacks it, so that no step waits long."""
        return

    def write_back(self) -> None:
        """Copy all resident sequences to host memory. They keep their cells."""
        return

    def charge_idle(self, seconds: float) -> None:
        """A step took so much longer for each idle cell."""
        return

    def limit_idle(self) -> None:
        """Reclaim resident sequences that are in host memory and whose cells have slowed down steps for too long."""
        return

    # ── host memory ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    @abstractmethod
    def stored(self) -> int:
        """Tokens in host memory."""

    @property
    @abstractmethod
    def stored_bytes(self) -> int:
        """All host memory of the cache: prefixes, the buffer for copies, and what is on its way to or from a disk."""

    @abstractmethod
    def adopt(self, namespace: str, tokens: list[int], state: Any, *, start: int = 0, has_file: bool = False) -> int:
        """Store a state that was computed elsewhere, of the tokens from `start` on. Returns how many of the tokens are
        in host memory now. `has_file`: it was read from disk.
        """

    @abstractmethod
    def erase(self, namespace: str, tokens: list[int], keep: int = 0) -> int:
        """Drop a prefix after its first `keep` tokens, except what others use. Returns how many tokens left host
        memory.
        """

    def clear(self, tenant: str | None = None) -> None:
        """Drop what no running sequence uses, of one tenant or of all, without copying it anywhere."""
        self._begin_clear(tenant)
        for owner in self._quota.tenants() if tenant is None else [tenant]:
            while self._quota.held(owner):
                try:
                    self._evict(owner, ())
                except LookupError:  # the rest is in use
                    break

    def _begin_clear(self, tenant: str | None) -> None:
        """Free the cells of resident sequences, of one tenant or of all, and write no files of what is dropped."""
        return

    def resize(self, ram_bytes: int) -> None:
        """Change the size of host memory, and evict what no longer fits."""
        self._ram_bytes = ram_bytes
        self._quota.budget = self._budget_of(ram_bytes)
        self._release_buffer()
        self._evict_excess()

    def _evict_excess(self) -> None:
        self._evict_until_fits(0, self._quota.largest)
        self._evict_more()

    def _evict_more(self) -> None:
        """Evict also what running requests use, if the rest does not fit."""
        return

    def pin(self, pieces: Sequence[Piece]) -> None:
        """Another thread reads these pieces: keep them in host memory until they are unpinned."""
        return

    def unpin(self, pieces: Sequence[Piece]) -> None:
        return

    def _release_buffer(self) -> None:
        """Free the buffer for copies, if there is one and it is large."""
        return

    @abstractmethod
    def _budget_of(self, ram_bytes: int) -> int:
        """So many bytes in the unit of the quota."""

    @abstractmethod
    def _evict(self, tenant: str, protected: Collection[Any]) -> None:
        """Evict the least recently used entry of a tenant. Raises `LookupError` when all are in use or protected."""

    def _make_room(self, tenant: str, size: int, protected: Collection[Any] = ()) -> bool:
        """Evict until `size` more fits. False: the rest is in use or within another tenant's share."""
        return self._evict_until_fits(size, lambda busy: self._quota.victim(tenant, size, busy), protected)

    def _evict_until_fits(
        self, size: int, choose: Callable[[set[str]], str | None], protected: Collection[Any] = ()
    ) -> bool:
        busy: set[str] = set()
        while not self._quota.fits(size):
            victim = choose(busy)
            if victim is None:
                return False
            try:
                self._evict(victim, protected)
            except LookupError:
                busy.add(victim)
            else:
                self.evicted += 1
        return True

    # ── operations ───────────────────────────────────────────────────────────────────────────────────────────────────

    def take_operations(self) -> list[Operation]:
        """The operations that the engine must carry out, in this order, before its next step."""
        operations, self._operations = self._operations, []
        return operations

    @property
    def has_operations(self) -> bool:
        return bool(self._operations)

    # ── integrity ────────────────────────────────────────────────────────────────────────────────────────────────────

    def check_integrity(self) -> None:
        """Recount everything and compare it with the counters. Raises `CacheCorrupted` with the numbers."""
        total, used = self._shape.cells, self._count_used()
        if self.free + used != total:
            raise CacheCorrupted(f"{self.free} free cells + {used} used cells != {total}")
        stored = self._count_stored()
        if stored != self._quota.total or stored != self._quota.sum_of_tenants():
            raise CacheCorrupted(
                f"stored spans take {stored}, but the counters say {self._quota.total} in all and "
                f"{self._quota.sum_of_tenants()} by tenant"
            )

    @abstractmethod
    def _count_used(self) -> int:
        """Count the cells of all sequences one by one."""

    @abstractmethod
    def _count_stored(self) -> int:
        """Count the stored spans one by one, in the unit of the quota."""


class CacheCorrupted(AssertionError):
    """The counters of the cache do not agree with what it holds. This is a bug in Paddock."""
