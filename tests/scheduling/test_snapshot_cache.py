"""The snapshot cache against brute force: every sequence whose state is kept, compared one by one."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paddock.scheduling.snapshot_cache import SnapshotCache
from paddock.scheduling.snapshot_tree import SnapshotTree
from paddock.types import CacheShape, Drop, Forget, Fork, Operation, Piece, Restore, Save, SnapshotSize

# Few different tokens, so that sequences branch in the middle of edges.
Tokens = st.lists(st.integers(0, 2), min_size=1, max_size=24)
SIZE = SnapshotSize(fixed=100, per_token=3, per_window_token=5, window=8)


def _shared(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(st.lists(Tokens, max_size=12), Tokens, st.integers(0, 24))
def test_lookup_finds_the_longest_snapshot_that_is_a_prefix(
    kept: list[list[int]], asked: list[int], limit: int
) -> None:
    cache = _cache()
    for tokens in kept:
        _run(cache, tokens)
    prefixes = [len(tokens) for tokens in kept if tokens == asked[: len(tokens)] and len(tokens) <= limit]
    assert cache.lookup("", asked, limit) == max(prefixes, default=0)
    assert cache.branch("", asked) == max((_shared(tokens, asked) for tokens in kept), default=0)
    assert (cache.lookup("other", asked, limit), cache.branch("other", asked)) == (0, 0)


@given(st.lists(Tokens, unique_by=tuple, max_size=12), st.randoms(use_true_random=False))
def test_removing_snapshots_keeps_the_others_and_ends_empty(kept: list[list[int]], random: Random) -> None:
    tree = SnapshotTree()
    places = {number: tree.add("", tokens, number) for number, tokens in enumerate(kept, 1)}
    order = list(places)
    random.shuffle(order)
    for gone in order:
        tree.remove(places.pop(gone))
        for number, place in places.items():
            tokens = kept[number - 1]
            assert tree.longest("", tokens, len(tokens)) is place
            assert place.end == len(tokens)
    assert tree.common("", [token for tokens in kept for token in tokens]) == 0


@given(st.lists(Tokens, max_size=30), st.integers(0, 1000))
def test_snapshots_stay_within_the_byte_budget(kept: list[list[int]], budget: int) -> None:
    cache = _cache(ram=budget)
    held: dict[int, int] = {}
    for tokens in kept:
        _run(cache, tokens)
        _follow(cache.take_operations(), held)
        assert sum(held.values()) == cache.stored_bytes <= budget


@pytest.mark.parametrize(("tokens", "size"), [(1, 108), (8, 164), (9, 167), (100, 440)])
def test_tokens_outside_the_window_cost_less(tokens: int, size: int) -> None:
    assert SIZE.bytes(tokens) == size


def test_the_least_recently_used_snapshot_is_evicted_first() -> None:
    cache = _cache(ram=3 * SIZE.bytes(10))
    first, second, third, fourth = ([token] * 10 for token in range(4))
    for tokens in (first, second, third):
        _run(cache, tokens)
    assert cache.enter(0, "", [*first, 9], 10) == 10
    cache.leave(0, [], 0)
    _run(cache, fourth)
    assert [cache.lookup("", tokens) for tokens in (first, second, third, fourth)] == [10, 0, 10, 10]
    assert cache.evicted == 1


def test_a_unified_sequence_is_forked_only_at_its_current_position() -> None:
    cache = _cache()
    cache.enter(0, "", [1, 2, 3, 4], 3)
    cache.advance(0, [1, 2, 3])
    assert cache.enter(1, "", [1, 2, 9], 2) == 0, "a state cannot be cut to two of three tokens"
    assert cache.enter(2, "", [1, 2, 3, 9], 3) == 3
    cache.advance(0, [4])
    cache.advance(2, [9])
    assert cache.used == 5, "three cells are shared"
    assert cache.take_operations() == [Fork(0, 2, 3)]
    cache.leave(0, [], 0)
    assert cache.used == 4


def test_streams_restore_an_existing_snapshot() -> None:
    cache = _cache(unified=False)
    cache.enter(0, "", [1, 2, 3, 4], 3)
    cache.advance(0, [1, 2, 3])
    cache.take_snapshot(0)
    assert cache.enter(1, "", [1, 2, 3, 9], 3) == 3
    assert cache.used == 6
    assert cache.take_operations() == [Save(0, 0, 3, 1), Restore(1, 0, [Piece(1, 0, 3)])]


def test_a_generating_sequence_is_not_forked() -> None:
    cache = _cache(ram=0)
    cache.enter(0, "", [1, 2], 1)
    cache.advance(0, [1, 2])
    assert cache.lookup("", [1, 2, 3]) == 2
    cache.grow(0, 1)
    assert cache.lookup("", [1, 2, 3]) == 0


def test_no_prompt_snapshot_is_taken_after_generation_started() -> None:
    cache = _cache()
    cache.enter(0, "", [1, 2], 1)
    cache.advance(0, [1, 2])
    cache.grow(0, 1)
    cache.take_snapshot(0)
    assert cache.take_operations() == []


def test_a_state_longer_than_the_kept_tokens_is_not_stored() -> None:
    cache = _cache()
    cache.enter(0, "", [1, 2, 3], 2)
    cache.advance(0, [1, 2, 3])
    cache.leave(0, [1, 2], 2)
    assert cache.take_operations() == [Forget(0)]


def test_a_sequence_without_a_namespace_stores_nothing() -> None:
    cache = _cache()
    assert cache.enter(0, None, [1, 2, 3], 3) == 0
    cache.advance(0, [1, 2, 3])
    cache.take_snapshot(0)
    assert cache.lookup("", [1, 2, 3]) == 0
    cache.leave(0, [1, 2, 3], 3)
    assert cache.take_operations() == [Forget(0)]


def test_restore_is_limited_by_free_cells() -> None:
    cache = _cache(cells=10)
    _run(cache, [1] * 4)
    _run(cache, [1] * 8)
    cache.enter(0, None, [2] * 5, 0)
    cache.advance(0, [2] * 5)
    assert cache.enter(1, "", [1] * 9, 8) == 4


def test_erase_keeps_snapshots_that_others_share() -> None:
    cache = _cache()
    for tokens in ([1, 2], [1, 2, 3], [1, 2, 3, 4], [1, 2, 8]):
        _run(cache, tokens)
    cache.erase("", [1, 2, 3, 4])
    assert [cache.lookup("", tokens) for tokens in ([1, 2, 3, 4], [1, 2, 8])] == [2, 3]
    cache.erase("", [1, 2, 8])
    assert (cache.stored, cache.stored_bytes) == (0, 0)


class Running(RuleBasedStateMachine):
    """Sequences start, advance, are stored, move and end. Only their own steps change their tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = _cache(cells=60, ram=600)
        self.cells: dict[int, list[int]] = {}
        self.kept: dict[int, list[int]] = {}
        self.wanted: dict[int, list[int]] = {}

    @precondition(lambda self: len(self.wanted) < 3 and self.cache.free > 0)
    @rule(tokens=Tokens)
    def begin(self, tokens: list[int]) -> None:
        sequence = next(id for id in range(3) if id not in self.wanted)
        known = self.cache.enter(sequence, "", tokens, len(tokens) - 1)
        self.wanted[sequence] = tokens
        self.carry_out()
        assert self.cells.get(sequence, []) == tokens[:known]

    @precondition(lambda self: self.wanted)
    @rule(data=st.data(), count=st.integers(1, 6), keep=st.booleans())
    def go_on(self, data: st.DataObject, count: int, keep: bool) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.wanted)))
        held = self.cells.setdefault(sequence, [])
        count = min(count, self.cache.free)
        rest = self.wanted[sequence][len(held) :][:count]
        if rest:
            self.cache.advance(sequence, rest)
            held += rest
            if keep:
                self.cache.take_snapshot(sequence)
        else:
            self.cache.grow(sequence, count)
            held += [7] * count
        self.carry_out()

    @precondition(lambda self: self.wanted)
    @rule(data=st.data(), worth_keeping=st.booleans())
    def end(self, data: st.DataObject, worth_keeping: bool) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.wanted)))
        del self.wanted[sequence]
        kept = self.cells.get(sequence, []) if worth_keeping else []
        self.cache.leave(sequence, kept, len(kept))
        self.carry_out()

    def carry_out(self) -> None:
        for operation in self.cache.take_operations():
            match operation:
                case Forget(sequence, start):
                    assert start == 0
                    self.cells.pop(sequence, None)
                case Fork(source, target, length):
                    assert length == len(self.cells[source])
                    self.cells[target] = list(self.cells[source])
                case Save(sequence, start, end, snapshot):
                    assert (start, end) == (0, len(self.cells[sequence]))
                    self.kept[snapshot] = list(self.cells[sequence])
                case Restore(sequence, start, [piece]):
                    assert (start, piece.offset, piece.length) == (0, 0, len(self.kept[piece.span]))
                    self.cells[sequence] = list(self.kept[piece.span])
                case Drop(snapshot):
                    del self.kept[snapshot]

    @invariant()
    def the_accounts_agree(self) -> None:
        assert self.cache.stored == sum(map(len, self.kept.values()))
        assert self.cache.stored_bytes == sum(SIZE.bytes(len(tokens)) for tokens in self.kept.values()) <= 600
        assert max(map(len, self.cells.values()), default=0) <= self.cache.used <= 60


TestRunning = Running.TestCase


def _cache(*, cells: int = 1000, unified: bool = True, ram: int = 100_000) -> SnapshotCache:
    return SnapshotCache(
        CacheShape(cells=cells, unified=unified, bytes_per_token=0, ram_bytes=ram, reuse="snapshot", snapshot=SIZE)
    )


def _run(cache: SnapshotCache, tokens: list[int]) -> None:
    known = cache.enter(0, "", tokens, len(tokens))
    cache.advance(0, tokens[known:])
    cache.leave(0, tokens, len(tokens))


def _follow(operations: list[Operation], held: dict[int, int]) -> None:
    """Snapshot → bytes, as an engine would count them."""
    for operation in operations:
        if isinstance(operation, Save):
            held[operation.span] = SIZE.bytes(operation.end)
        elif isinstance(operation, Drop):
            del held[operation.span]
