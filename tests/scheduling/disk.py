"""A harness with a disk in memory, whose reads and writes end when the test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from paddock.disk_cache import Entry, StateKey, Written
from paddock.disk_cache.keys import encode_tokens
from paddock.scheduling import DiskTier, Plan, Read, Write
from paddock.types import Operation
from tests.scheduling.harness import Harness

Files = dict[Entry, bytes]
"""Entry without a size → its state."""


class DiskHarness(Harness):
    """`read_one` and `write_one` do what the threads of a worker do. `files` outlive it, as files outlive a process."""

    def __init__(self, files: Files, **options: Any) -> None:
        super().__init__(**{"cache_ram_bytes": 4 << 20} | options)
        self.files = files
        self.now = 0.0
        self.is_busy = False
        """The server has no idle time: what is evicted before it is written is written then."""
        self.sizes: dict[int, int] = {}
        """Span or checkpoint that was lent → its bytes."""
        self.adopted: list[int] = []
        """The bytes of states that were read, and that the engine has not copied yet."""
        self.reads: deque[Read] = deque()
        self.writes: deque[list[tuple[Write, bytes]]] = deque()
        tier = self.scheduler.open_disk(StateKey(self.engine.origin))
        assert tier is not None
        self.tier: DiskTier = tier
        self.tier.listed(replace(entry, size=size_of(state)) for entry, state in files.items())
        apply: Callable[[Sequence[Operation]], Any] = self.engine.apply

        def save_evicted(operations: Sequence[Operation]) -> Any:
            self._order(self.tier.evicted_writes(operations, self.now))
            copied = apply(operations)
            self.adopted.clear()
            self.tier.end_operations()
            return copied

        self.engine.apply = save_evicted  # type: ignore[method-assign]

    @property
    def held_bytes(self) -> int:
        """With what the threads hold: spans that were dropped while they were written, and what was read."""
        lent = {piece.span for batch in self.writes for write, _ in batch for piece in write.pieces}
        size = sum(self.sizes[span] for span in lent if not self._is_held(span))
        size += sum(self.state_size(len(entry)) for read in self.reads for entry, _ in read.entries)
        return super().held_bytes + size + sum(self.adopted)

    def _is_held(self, span: int) -> bool:
        return span in self.engine._spans or (self.engine._states is not None and span in self.engine._states)

    def state_size(self, tokens: int) -> int:
        """The bytes of a file's state in host memory."""
        shape = self.engine.shape
        return tokens * shape.bytes_per_token + (shape.snapshot.fixed if shape.reuse == "checkpoint" else 0)

    def step(self) -> Plan | None:
        if (read := self.scheduler.continue_reads()) is not None:
            self.reads.append(read)
        plan = super().step()
        if not self.scheduler.cache.has_operations:
            self._order(self.tier.next_writes(self.now, is_busy=self.is_busy))
        return plan

    def settle(self) -> None:
        """Run until no request and no file is left to do."""
        while True:
            self.run_some()
            if self.reads:
                self.read_one()
            elif self.writes:
                self.write_one()
            elif not self.tier.waiting and self.scheduler.is_idle:
                return

    def run_some(self) -> None:
        while self.step() is not None:
            pass

    def read_one(self, *, damaged: Iterable[int] = ()) -> None:
        read, states = self.reads.popleft(), []
        for number, (entry, _) in enumerate(read.entries):
            packed = None if number in damaged else self.files.get(replace(entry, size=0))
            states.append(None if packed is None else self.engine.unpack(memoryview(packed), len(entry)))
            if packed is None:
                break
        self.tier.finish_read(states, 0.01)
        if self.scheduler.cache.has_operations:
            self.adopted += [self.state_size(len(entry)) for entry, _ in read.entries]

    def write_one(self, *, fails: bool = False, refused: bool = False) -> None:
        """`fails`: nothing can be written. `refused`: at this moment."""
        results: list[tuple[Write, Written]] = []
        for write, state in self.writes.popleft():
            if write.is_cancelled:
                results.append((write, Written(None)))
            elif not fails and not refused:
                self.files[write.entry] = state
                results.append((write, Written(replace(write.entry, size=size_of(state)))))
            else:
                results.append((write, Written(None, is_refused=refused)))
        self.tier.finish_writes(results, 0.01, self.now)
        for entry in self.tier.take_superseded():
            self.files.pop(replace(entry, size=0), None)

    def look(self, found: Iterable[Entry] = (), gone: Iterable[Entry] = ()) -> None:
        """These files were found and missed in the directory."""
        entries = [replace(entry, size=size_of(self.files[entry])) for entry in found]
        self.tier.changed(entries, [entry.name for entry in gone])

    def clear(self, tenant: str | None = None) -> None:
        self.scheduler.cache.clear(tenant)
        for entry in self.tier.clear(tenant):
            self.files.pop(replace(entry, size=0), None)

    def _order(self, writes: list[Write]) -> None:
        if writes:
            views = [self.engine.view_pieces(write.pieces) for write in writes]
            shape, spans = self.engine.shape, self.engine._spans
            for span in (piece.span for write in writes for piece in write.pieces):
                self.sizes[span] = len(spans[span]) * shape.bytes_per_token if span in spans else shape.snapshot.fixed
            packed = [b"".join(self.engine.pack(view)) for view in views]
            self.writes.append(list(zip(writes, packed, strict=True)))


def longest_on_disk(files: Files, namespace: str, tokens: Sequence[int]) -> int:
    """By looking at every file: how many of the first tokens the disk has."""
    longest = 0
    for entry in sorted(files, key=lambda entry: entry.start):
        before = _KEY.prefix(namespace).extend(encode_tokens(tokens[: entry.start]))
        if entry.namespace != namespace or entry.start > longest or entry.parent != before:
            continue
        pairs = enumerate(zip(entry.tokens, tokens[entry.start :], strict=False))
        whole = min(len(entry), len(tokens) - entry.start)
        longest = max(longest, entry.start + next((at for at, (one, other) in pairs if one != other), whole))
    return longest


_KEY = StateKey(Harness().engine.origin)


def size_of(state: bytes) -> int:
    return len(state) + 100
