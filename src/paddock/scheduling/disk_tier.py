"""The third tier: which spans of host memory are written to files, and which files are read for a request.

The disk is a source and a sink of host memory. A request whose prompt has a longer prefix on disk than in cells and
host memory waits outside the queue until the files are read and the cache has adopted them. Spans without a file are
written when there is time, parents first. This is pure: `worker/disk_io.py` moves the bytes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paddock.disk_cache import RETRY_AFTER, DiskIndex, Entry, StateKey, Written, entries_for
from paddock.scheduling.prefix_cache import PrefixCache
from paddock.scheduling.prices import Prices
from paddock.scheduling.quota import tenant_of
from paddock.scheduling.request import Request
from paddock.scheduling.sharing import namespace, reusable
from paddock.scheduling.unwritten import StoredPath
from paddock.types import Adopt, AdoptCheckpoint, CacheShape, Operation, Piece, Save, SaveCheckpoint

_READ = 256 << 20
"""The most bytes of one read."""
_READ_PART = 4
"""One read takes at most this part of host memory, if it has more than one file: what was read is copied into spans, so
it is held twice for a moment.
"""
_WRITE = 16 << 20
"""The bytes of one write. A read may have to wait for its end on a slow disk."""
_FILE = 256
"""The most tokens of a file."""
_LEAST_FILE = 16
"""Fewer new tokens than this are written together with those that follow."""
LEAST_GAIN = 32
"""A request does not wait for fewer tokens than this."""
_RUN = 1024
"""The most tokens of adjacent spans that are written together."""
_RUN_PART = 8
"""And the part of host memory, if that is less, but at least a file. They are not evicted before they are written."""
_EXAMINED = 64
"""The most spans that are looked at for one write."""
_SHARE = 9.0
"""While requests run, the writer rests so many times as long as it wrote: it takes time from the CPU's cores."""


@dataclass(slots=True, frozen=True)
class Read:
    """Files to read for a request, each with how many of its tokens are wanted."""

    request: Request
    namespace: str
    entries: list[tuple[Entry, int]]
    tokens: int
    """What all files take in host memory, in tokens. Files are read whole."""


@dataclass(slots=True, eq=False)
class Write:
    """A file to write: its entry, the pieces of host memory that hold its tokens, and the entries before it."""

    entry: Entry
    pieces: list[Piece]
    chain: list[Entry]
    is_cancelled: bool = False
    """The cache was cleared meanwhile. The writer reads this without a lock."""


@dataclass(slots=True)
class DiskCounts:
    """What the tier did in an interval."""

    read_bytes: int = 0
    written_bytes: int = 0
    tokens: int = 0
    """Tokens that requests did not compute because they were on disk."""
    failed_reads: int = 0
    failed_writes: int = 0
    lost: int = 0
    """Evicted spans or states that were not written, because there was no room for them to wait for the writer."""


def spans_made_by(operations: Iterable[Operation]) -> set[int]:
    """The spans and checkpoints that come to host memory."""
    made: set[int] = set()
    for operation in operations:
        match operation:
            case Save() | Adopt():
                made.add(operation.span)
            case SaveCheckpoint() | AdoptCheckpoint():
                made.add(operation.checkpoint)
    return made


class DiskTier:
    def __init__(self, cache: PrefixCache, shape: CacheShape, prices: Prices, key: StateKey) -> None:
        self._cache = cache
        self._shape = shape
        self._prices = prices
        self._key = key
        self._index: DiskIndex | None = None
        """None: the files are not listed yet."""
        self._waiting: deque[Request] = deque()
        self._released: list[Request] = []
        self._reading: Read | None = None
        self._adopted = 0
        """Tokens of finished reads that the engine has not copied yet."""
        self._is_cancelled = False
        """The cache was cleared since the read began."""
        self._writing: set[Write] = set()
        """What was handed to the writer."""
        self._cleared: list[str | None] = []
        """Tenants whose files were removed before the files were listed. None: all."""
        self._superseded: list[Entry] = []
        self._rests_until = 0.0
        self._refused_until = -math.inf
        """The disk is full or fails. What it refused is written after this time, if it is still in host memory."""
        self.counts = DiskCounts()
        cache.use_disk()

    @property
    def waiting(self) -> Collection[Request]:
        """Requests that wait for a read."""
        return self._waiting

    @property
    def files(self) -> int:
        return 0 if self._index is None else len(self._index)

    @property
    def bytes(self) -> int:
        """Of all files of this model."""
        return 0 if self._index is None else self._index.bytes

    @property
    def in_flight(self) -> int:
        """Bytes of files that wait for the writer."""
        return sum(len(write.entry) for write in self._writing) * self._shape.bytes_per_token

    @property
    def pays(self) -> bool:
        """Whether a span is read and restored faster than computed. True while that is not measured."""
        size = _FILE * self._shape.bytes_per_token
        return self._prices.restore_saves(_FILE, size, on_disk=size) > 0

    def entries(self) -> Iterator[Entry]:
        """The files of this model, with those that are being written."""
        return iter(()) if self._index is None else iter(self._index)

    def take_counts(self) -> DiskCounts:
        counts, self.counts = self.counts, DiskCounts()
        return counts

    def listed(self, entries: Iterable[Entry]) -> None:
        """The files that existed at the start. Requests wait for this."""
        self._index = DiskIndex(self._key, entries)
        for tenant in self._cleared:
            self.clear(tenant)

    def changed(self, found: Iterable[Entry], gone: Iterable[str]) -> None:
        """Other processes wrote these files, and removed those with these names."""
        assert self._index is not None, "they are listed first"
        writing = {write.entry.name for write in self._writing}
        self._index.remove_named(name for name in gone if name not in writing)
        for entry in found:
            if entry not in self._index:
                self._index.add(entry)

    def clear(self, tenant: str | None) -> list[Entry]:
        """Forget the files of a tenant, or all. Returns those that must be removed. What is being read is not used, and
        what is being written is cancelled.
        """
        if self._index is None:
            self._cleared.append(tenant)
            return []
        if self._reading is not None and tenant in (None, tenant_of(self._reading.namespace)):
            self._is_cancelled = True
        for write in self._writing:
            write.is_cancelled |= tenant in (None, tenant_of(write.entry.namespace))
        entries = [entry for entry in self._index if tenant in (None, tenant_of(entry.namespace))]
        for entry in entries:
            self._index.remove(entry)
        return entries

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def hold(self, request: Request) -> bool:
        """Let a new request wait if files may have a longer prefix of it. False: it need not wait."""
        if request.deterministic and not self._shape.has_exact_copies:
            return False
        if request.namespace is None or reusable(request) < LEAST_GAIN or not self._cache.max_stored:
            return False
        if self._index is not None and not self._missing(request):
            return False
        self._waiting.append(request)
        return True

    def remove(self, requests: Collection[Request]) -> None:
        """These requests no longer wait. A read that has begun is adopted all the same."""
        self._waiting = deque(request for request in self._waiting if request not in requests)

    def next_read(self) -> Read | None:
        """The next files to read. One read at a time: the next request may need the same files."""
        if self._reading is not None or self._adopted or self._index is None:
            return None
        while self._waiting:
            request = self._waiting[0]
            if missing := self._missing(request):
                own = namespace(request)
                assert own is not None, "a request without a namespace does not wait"
                read = Read(request, own, missing, sum(self._size(entry) for entry, _ in missing))
                if self._cache.begin_read(own, request.tokens, read.tokens):
                    self._reading, self._is_cancelled = read, False
                    return read
            self._released.append(self._waiting.popleft())
        return None

    def finish_read(self, states: Sequence[Any | None], seconds: float) -> None:
        """The states of the files of the last read, None for one that could not be read; only the first ones, if the
        others are of no use without those.
        """
        read, self._reading = self._reading, None
        assert read is not None, "a read was ordered"
        assert self._index is not None, "nothing is read before"
        request, own = read.request, read.namespace
        before = self._cache.lookup(own, request.tokens, reusable(request))
        stored = self._stored(own, request.tokens)
        size, known = 0, stored
        if self._is_cancelled:
            states = ()
        for (entry, used), state in zip(read.entries, states, strict=False):
            if state is None:
                self._index.remove(entry)
                self.counts.failed_reads += 1
                break
            size += entry.size
            tokens = request.tokens[: entry.start + used]
            known = self._cache.adopt(own, tokens, state, start=entry.start, has_file=True)
            if known < len(tokens):
                break  # host memory is full of what others use
        self.counts.read_bytes += size
        self._prices.disk_read.observe(size, seconds)
        self._adopted += read.tokens
        if not self._cache.has_operations:
            self.end_operations()  # nothing was adopted
        gained = max(known - before, 0)
        self.counts.tokens += gained
        request.from_disk += gained
        if known <= stored and None not in states and self._waiting and self._waiting[0] is request:
            self._released.append(self._waiting.popleft())  # trying again would not help

    def end_operations(self) -> None:
        """The engine has carried out its operations, and copied what was read."""
        self._cache.end_read(self._adopted)
        self._adopted = 0

    def _size(self, entry: Entry) -> int:
        """What a file takes in host memory, in tokens."""
        return len(entry)

    def take_released(self) -> list[Request]:
        """The requests that have what the disk can give them."""
        released, self._released = self._released, []
        return released

    def _missing(self, request: Request) -> list[tuple[Entry, int]]:
        """The files that give a request more than it has in cells and host memory, if reading them pays."""
        own, limit = namespace(request), reusable(request)
        assert own is not None, "a request without a namespace does not wait"
        known = self._cache.lookup(own, request.tokens, limit)
        if limit - known < LEAST_GAIN:
            return []
        return self._missing_files(own, request.tokens[:limit], known)

    def _missing_files(self, own: str, tokens: list[int], known: int) -> list[tuple[Entry, int]]:
        """The files for these tokens, of which cells and host memory have `known`."""
        assert self._index is not None, "checked by the callers"
        stored = self._stored(own, tokens)
        found: list[tuple[Entry, int]] = []
        end = size = held = 0
        most = min(_READ // self._shape.bytes_per_token, self._cache.max_stored // _READ_PART)
        for entry, used in self._index.match(own, tokens):
            if not entry.size:
                break  # it is being written
            if entry.start + used > stored:
                held += len(entry)
                if found and held > most:
                    break
                found.append((entry, used))
                size += entry.size
            end = entry.start + used
        gain = end - known
        if gain < LEAST_GAIN:
            return []
        pays = self._prices.is_worth_restoring(gain, gain * self._shape.bytes_per_token, on_disk=size)
        return found if pays else []

    def _stored(self, own: str, tokens: list[int]) -> int:
        return sum(piece.length for piece in self._cache.stored_pieces(own, tokens))

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin_flush(self) -> None:
        """The worker ends: what is not written soon is lost."""

    def take_superseded(self) -> list[Entry]:
        """Files that later ones replace. They must be removed."""
        superseded, self._superseded = self._superseded, []
        return superseded

    def next_writes(self, now: float, *, is_busy: bool = False) -> list[Write]:
        """The next files to write, if the writer has nothing to do. `is_busy`: requests run."""
        if self._writing or self._index is None or not self.pays:
            return []
        if now < self._refused_until or (is_busy and now < self._rests_until):
            return []
        unwritten, writes = self._cache.unwritten, list[Write]()
        longest = min(_RUN, max(self._cache.max_stored // _RUN_PART, _FILE))
        for span in unwritten.first(_EXAMINED):
            if span not in unwritten:
                continue
            if self.in_flight >= _WRITE:
                break
            path = unwritten.path(span, longest)
            if not self._cache.is_written_back and len(path.tokens) - self._written(path)[1] < _FILE:
                continue  # more of it will come
            unwritten.begin(path)
            ordered = self._order(path)
            begun = {piece.span for write in ordered for piece in write.pieces}
            unwritten.end(piece.span for piece in path.pieces if piece.span not in begun)
            writes += ordered
        return writes

    def evicted_writes(self, operations: Sequence[Operation], now: float) -> list[Write]:
        """Files for what the next operations drop. Spans that they make first never were in host memory."""
        writes: list[Write] = []
        unsaved = spans_made_by(operations)
        for path in self._cache.unwritten.take_evicted():
            if self._index is None or now < self._refused_until or not self.pays:
                self.counts.lost += 1
            elif all(piece.span not in unsaved for piece in path.pieces):
                if self._cache.can_lend(path.part(self._written(path)[1], len(path.tokens))):
                    writes += self._order(path)
                else:
                    self.counts.lost += 1
        self._cache.begin_operations()
        return writes

    def finish_writes(self, results: Sequence[tuple[Write, Written]], seconds: float, now: float) -> None:
        """What became of each write. The writer has no views of its pieces any more."""
        assert self._index is not None, "nothing is written before"
        size = 0
        refused = {piece.span for write, written in results if written.is_refused for piece in write.pieces}
        if refused:
            self._refused_until = now + RETRY_AFTER
        for write, written in results:
            self._cache.unwritten.end({piece.span for piece in write.pieces}, refused=refused)
            self._writing.remove(write)
            self._cache.take_back(write.pieces)
            self._index.remove_named(written.evicted)
            entry = written.entry
            if write.is_cancelled:
                continue
            if entry is None:
                self._index.remove(write.entry)
                self.counts.failed_writes += 1
            else:
                self._index.add(entry)
                size += entry.size
        self.counts.written_bytes += size
        self._prices.disk_write.observe(size, seconds)
        self._rests_until = now + _SHARE * seconds

    def _written(self, path: StoredPath) -> tuple[list[Entry], int]:
        """The files that have the first tokens of a path or will have them, and how many those are."""
        assert self._index is not None, "checked by the callers"
        chain = self._index.match(path.namespace, path.tokens)
        return [entry for entry, _ in chain], chain[-1][0].start + chain[-1][1] if chain else 0

    def _order(self, path: StoredPath) -> list[Write]:
        """Order what the disk lacks of a path."""
        assert self._index is not None, "checked by the callers"
        chain, start = self._written(path)
        end = len(path.tokens)
        if end - start < _LEAST_FILE:
            return []
        writes: list[Write] = []
        for entry in entries_for(self._key, path.namespace, path.tokens, [*range(start, end, _FILE), end]):
            self._index.add(entry)
            write = Write(entry, path.part(entry.start, entry.end), list(chain))
            self._writing.add(write)
            self._cache.lend(write.pieces)
            writes.append(write)
            chain.append(entry)
        return writes
