"""The checkpoint cache against brute force: every checkpoint and every sequence, compared one by one."""

from __future__ import annotations

import math
from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paddock.scheduling.checkpoint_cache import CheckpointCache
from paddock.scheduling.prices import Prices
from paddock.types import (
    CacheShape,
    CopyCheckpoint,
    Drop,
    Forget,
    Fork,
    LoadCheckpoint,
    Operation,
    Reserve,
    Restore,
    Save,
    SaveCheckpoint,
    SnapshotSize,
)

# Few different tokens, so that sequences branch in the middle of edges.
Tokens = st.lists(st.integers(0, 2), min_size=1, max_size=24)
Namespaces = st.sampled_from(["", "", "other", None])
SIZE = SnapshotSize(fixed=40, per_window_token=4, window=8)
TOKEN = 8
"""The bytes of a token's keys and values."""
MOST = 3
"""Checkpoints of a sequence."""


class Engine:
    """Carries out operations on lists of tokens. A cell is a token and a number, which sharers have in common."""

    def __init__(self, *, unified: bool) -> None:
        self._unified = unified
        self._numbers = count()
        self.cells: dict[int, list[tuple[int, int]]] = {}
        self.states: dict[int, list[int]] = {}
        """What the windowed layers of a sequence know: these tokens."""
        self.spans: dict[int, tuple[int, list[int]]] = {}
        """Span → its start, and all tokens up to its end."""
        self.checkpoints: dict[int, list[int]] = {}
        self.buffer = 0

    def tokens(self, sequence: int) -> list[int]:
        return [token for token, _ in self.cells.get(sequence, [])]

    def compute(self, sequence: int, tokens: list[int]) -> None:
        assert self.states.get(sequence, []) == self.tokens(sequence), "it continues with the state of its tokens"
        self._append(sequence, tokens)
        self.states[sequence] = self.tokens(sequence)

    def apply(self, operation: Operation) -> None:
        match operation:
            case Forget(sequence, start):
                self._cut(sequence, start)
            case Fork(source, target, length, start):
                self._cut(target, start)
                self.states.pop(target, None)
                cells = self.cells[source][start:length]
                assert len(cells) == length - start
                if self._unified:
                    self.cells.setdefault(target, []).extend(cells)
                else:
                    self._append(target, [token for token, _ in cells])
            case Save(sequence, start, end, span):
                assert end <= len(self.cells[sequence])
                self.spans[span] = start, self.tokens(sequence)[:end]
            case Restore(sequence, start, pieces):
                assert start == len(self.cells.get(sequence, []))
                self.states.pop(sequence, None)
                for piece in pieces:
                    first, tokens = self.spans[piece.span]
                    at = first + piece.offset
                    assert self.tokens(sequence) == tokens[:at], "the piece follows what the sequence holds"
                    self._append(sequence, tokens[at : at + piece.length])
            case SaveCheckpoint(sequence, length, checkpoint):
                self._expect(sequence, length)
                self.checkpoints[checkpoint] = self.states[sequence]
            case LoadCheckpoint(sequence, length, checkpoint):
                self.states[sequence] = self.checkpoints[checkpoint]
                self._expect(sequence, length)
            case CopyCheckpoint(source, target, length):
                self.states[target] = self.states[source]
                self._expect(target, length)
            case Drop(name):
                del (self.checkpoints if name in self.checkpoints else self.spans)[name]
            case Reserve(size):
                self.buffer = size
            case _:
                raise AssertionError(f"{operation} is not for this cache")

    @property
    def stored(self) -> int:
        return sum(len(tokens) - start for start, tokens in self.spans.values())

    @property
    def stored_bytes(self) -> int:
        states = sum(SIZE.bytes(len(tokens)) for tokens in self.checkpoints.values())
        return (self.stored + self.buffer) * TOKEN + states

    @property
    def used(self) -> int:
        return len({number for cells in self.cells.values() for _, number in cells})

    def _append(self, sequence: int, tokens: list[int]) -> None:
        self.cells.setdefault(sequence, []).extend((token, next(self._numbers)) for token in tokens)

    def _cut(self, sequence: int, start: int) -> None:
        del self.cells.setdefault(sequence, [])[start:]
        if len(self.states.get(sequence, [])) > start:
            del self.states[sequence]

    def _expect(self, sequence: int, length: int) -> None:
        assert self.states.get(sequence) == self.tokens(sequence)
        assert len(self.cells[sequence]) == length


class Checkpoints(RuleBasedStateMachine):
    """Sequences start, are computed, save checkpoints, end, stay resident, move and are reclaimed."""

    @initialize(unified=st.booleans(), ram=st.integers(0, 120), buffered=st.booleans())
    def build(self, unified: bool, ram: int, buffered: bool) -> None:
        self.ram = ram * TOKEN
        shape = CacheShape(
            cells=100,
            unified=unified,
            bytes_per_token=TOKEN,
            ram_bytes=self.ram,
            reuse="checkpoint",
            snapshot=SIZE,
            checkpoints=MOST,
            idle_cells=20,
            state_bytes=(10, TOKEN + 2) if buffered else (0, 0),
            part_tokens=4,
        )
        self.cache, self.engine, self.unified = CheckpointCache(shape), Engine(unified=unified), unified
        self.running: dict[int, tuple[str | None, list[int]]] = {}
        """Sequence → its namespace and its prompt."""
        self.generating: set[int] = set()
        self.resident: dict[int, str | None] = {}
        self.owners: dict[int, str] = {}
        """Checkpoint → its namespace."""

    @rule(data=st.data(), namespace=Namespaces, tokens=Tokens)
    def begin(self, data: st.DataObject, namespace: str | None, tokens: list[int]) -> None:
        sequences = [id for id in range(4) if id not in self.running]
        if not sequences or self.cache.free <= 0:
            return
        sequence = data.draw(st.sampled_from(sequences))
        limit = data.draw(st.integers(0, len(tokens)))
        usable = self.usable(namespace, tokens, limit)
        has_room = not self.unified or self.cache.free >= len(tokens)
        known = self.cache.enter(sequence, namespace, tokens, limit)
        operations = self.carry_out()  # a checkpoint that it saves is of what the sequence held before
        self.resident.pop(sequence, None)
        self.running[sequence] = namespace, tokens
        assert known in {0, *usable}
        assert self.engine.tokens(sequence) == tokens[:known]
        assert self.engine.states.get(sequence, []) == tokens[:known]
        if has_room and not any(isinstance(it, Save | SaveCheckpoint | Reserve | Drop) for it in operations):
            assert known == max(usable, default=0), "the longest, unless something was evicted on the way"

    @rule(data=st.data(), most=st.integers(1, 6), saves=st.booleans())
    def compute(self, data: st.DataObject, most: int, saves: bool) -> None:
        if not self.running or self.cache.free <= 0:
            return
        sequence = data.draw(st.sampled_from(sorted(self.running)))
        held = self.engine.tokens(sequence)
        most = min(most, self.cache.free)
        rest = self.running[sequence][1][len(held) :][:most] if sequence not in self.generating else []
        if rest:
            self.engine.compute(sequence, rest)
            self.cache.advance(sequence, rest)
            if saves:
                self.cache.take_snapshot(sequence)
        else:
            self.engine.compute(sequence, [7] * most)
            self.cache.grow(sequence, most)
            self.generating.add(sequence)
        self.carry_out()

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if not self.running:
            return
        sequence = data.draw(st.sampled_from(sorted(self.running)))
        held = self.engine.tokens(sequence)
        kept = held[: data.draw(st.integers(0, len(held)))] if data.draw(st.booleans()) else held
        namespace, _ = self.running.pop(sequence)
        self.generating.discard(sequence)
        self.cache.leave(sequence, kept, data.draw(st.integers(0, len(kept))))
        self.resident[sequence] = namespace
        self.carry_out()

    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        sources = sorted(id for id, cells in self.engine.cells.items() if cells)
        targets = [id for id in range(4) if id not in sources and id not in self.running]
        if not sources or not targets:
            return
        source, target = data.draw(st.sampled_from(sources)), targets[0]
        self.cache.move(source, target, len(self.engine.cells[source]))
        for sequences in (self.running, self.resident):
            if source in sequences:
                sequences[target] = sequences.pop(source)  # type: ignore[assignment]
        if source in self.generating:
            self.generating.remove(source)
            self.generating.add(target)
        self.carry_out()

    @precondition(lambda self: self.cache.resident)
    @rule(data=st.data())
    def reclaim(self, data: st.DataObject) -> None:
        self.cache.reclaim(data.draw(st.sampled_from(sorted(self.cache.resident))))
        self.carry_out()

    @rule()
    def write_back_some(self) -> None:
        self.cache.write_back_some()
        self.carry_out()

    @rule()
    def limit_idle(self) -> None:
        self.cache.limit_idle()
        self.carry_out()

    @rule(namespace=st.sampled_from(["", "other"]), tokens=Tokens)
    def erase(self, namespace: str, tokens: list[int]) -> None:
        self.cache.erase(namespace, tokens)
        self.carry_out()

    @rule(tenant=st.sampled_from(["", "other", None]))
    def clear(self, tenant: str | None) -> None:
        self.cache.clear(tenant)
        self.carry_out()

    @rule(ram=st.integers(0, 120))
    def resize(self, ram: int) -> None:
        self.ram = ram * TOKEN
        self.cache.resize(self.ram)
        self.carry_out()

    @rule(namespace=Namespaces, tokens=Tokens, data=st.data())
    def look_up(self, namespace: str | None, tokens: list[int], data: st.DataObject) -> None:
        limit = data.draw(st.integers(0, len(tokens)))
        assert self.cache.lookup(namespace, tokens, limit) == max(self.usable(namespace, tokens, limit), default=0)

    def usable(self, namespace: str | None, tokens: list[int], limit: int) -> set[int]:
        """The lengths with which a sequence can start: every checkpoint, and all that a sequence holds."""
        if namespace is None:
            return set()
        known = [it for checkpoint, it in self.engine.checkpoints.items() if self.owners[checkpoint] == namespace]
        for sequence, (owner, _) in self.running.items():
            if owner == namespace and sequence not in self.generating:
                known.append(self.engine.tokens(sequence))
        known += [self.engine.tokens(id) for id, owner in self.resident.items() if owner == namespace]
        return {len(it) for it in known if 0 < len(it) <= limit and tokens[: len(it)] == it}

    def carry_out(self) -> list[Operation]:
        operations = self.cache.take_operations()
        for operation in operations:
            if isinstance(operation, SaveCheckpoint):
                owner = self.running[operation.sequence][0] if operation.sequence in self.running else None
                owner = self.resident.get(operation.sequence) if owner is None else owner
                assert owner is not None, "without a namespace nothing is kept"
                self.owners[operation.checkpoint] = owner
            self.engine.apply(operation)
            if isinstance(operation, SaveCheckpoint):
                tokens = self.engine.checkpoints[operation.checkpoint]
                on_path = [
                    it
                    for checkpoint, it in self.engine.checkpoints.items()
                    if self.owners[checkpoint] == owner and it == tokens[: len(it)]
                ]
                assert len(on_path) <= MOST
        return operations

    @invariant()
    def the_accounts_agree(self) -> None:
        cache, engine = self.cache, self.engine
        assert (cache.stored, cache.used) == (engine.stored, engine.used)
        assert cache.stored_bytes == engine.stored_bytes <= self.ram
        assert cache._checkpoints.keys() == engine.checkpoints.keys()
        assert set(cache.resident) == {id for id, cells in engine.cells.items() if cells and id not in self.running}
        cache.check_integrity()


TestCheckpoints = Checkpoints.TestCase


def test_the_least_recently_used_checkpoint_of_a_sequence_is_dropped_first() -> None:
    cache = _cache(ram=10_000)
    cache.enter(0, "", [1] * 30, 29)
    for _ in range(MOST):
        cache.advance(0, [1] * 5)
        cache.take_snapshot(0)
    assert cache.enter(1, "", [1] * 5 + [2], 5) == 5, "so the first one was used last"
    cache.advance(0, [1] * 5)
    cache.take_snapshot(0)
    cache.advance(0, [1] * 5)
    assert [cache.lookup("", [1] * 30, limit) for limit in (5, 10, 15, 20)] == [5, 5, 15, 20]


def test_checkpoints_that_take_more_than_keys_and_values_are_evicted_first() -> None:
    state = SIZE.bytes(10)
    cache = _cache(ram=3 * (10 * TOKEN + state))
    prompts = [[token] * 10 for token in range(4)]
    for tokens in prompts:
        _run(cache, tokens)
    assert [cache.lookup("", tokens) for tokens in prompts] == [0, 10, 10, 10]
    assert cache.stored_bytes <= 3 * (10 * TOKEN + state)


def test_the_last_states_of_many_streams_are_saved_before_they_are_reclaimed() -> None:
    """Each is a short copy that saves computing the whole conversation, whose keys and values were copied before."""
    prices, length = Prices(), 100
    for size in (10, 100, 1000):
        prices.save.observe(size, size * 1e-6)
        prices.restore.observe(size, size * 1e-6)
        prices.prefill.observe(size, size * 0.1)
    prices.pass_time(math.inf)
    cache = _cache(ram=100_000, unified=False, prices=prices)
    conversations = [[token] * length for token in range(4)]
    for sequence, tokens in enumerate(conversations):
        cache.enter(sequence, "", tokens, length)
        cache.advance(sequence, tokens)
        cache.leave(sequence, tokens, length)
    for _ in conversations:
        cache.write_back_some()
    assert [cache.lookup("", tokens) for tokens in conversations] == [length] * 4, "in their cells"
    assert not cache._checkpoints
    while not prices.goes_unnoticed(length * TOKEN):
        prices.pass_time(1)
    while prices.goes_unnoticed(length * TOKEN):
        pass
    for sequence in range(4):
        cache.reclaim(sequence)
    assert [cache.lookup("", tokens) for tokens in conversations] == [length] * 4, "in host memory"


def _cache(*, ram: int, unified: bool = True, prices: Prices | None = None) -> CheckpointCache:
    return CheckpointCache(
        CacheShape(
            cells=1000,
            unified=unified,
            bytes_per_token=TOKEN,
            ram_bytes=ram,
            reuse="checkpoint",
            snapshot=SIZE,
            checkpoints=MOST,
        ),
        prices,
    )


def _run(cache: CheckpointCache, tokens: list[int]) -> None:
    known = cache.enter(0, "", tokens, len(tokens))
    cache.advance(0, tokens[known:])
    cache.leave(0, tokens, len(tokens))
    cache.reclaim(0)
