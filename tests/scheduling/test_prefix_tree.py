"""The tree against a brute-force model: every cached token sequence, compared one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling.prefix_cache import PrefixCache
from paddock.scheduling.prefix_tree import PrefixTree
from paddock.scheduling.radix_tree import common_prefix
from paddock.types import CacheShape, Drop, Forget, Fork, Restore, Save

# Few different tokens, so that prefixes branch in the middle of edges.
Tokens = st.lists(st.integers(0, 2), min_size=1, max_size=24)


def _longest(known: list[list[int]], tokens: list[int]) -> int:
    def shared(other: list[int]) -> int:
        return next(
            (i for i, (a, b) in enumerate(zip(other, tokens, strict=False)) if a != b), min(len(other), len(tokens))
        )

    return max(map(shared, known), default=0)


@given(Tokens, Tokens, st.integers(0, 5))
def test_common_prefix_is_the_number_of_equal_tokens(a: list[int], b: list[int], at: int) -> None:
    assert common_prefix(a, b, min(at, len(b))) == _longest([a], b[at:])


@given(st.lists(Tokens, max_size=12), Tokens)
def test_match_is_the_longest_common_prefix_of_everything_stored(cached: list[list[int]], asked: list[int]) -> None:
    cache = _cache(ram_tokens=10_000)
    for tokens in cached:
        _run(cache, 0, tokens)
    assert cache.lookup("", asked) == _longest(cached, asked)
    assert cache.lookup("other", asked) == 0


@given(st.lists(Tokens, min_size=1, max_size=8, unique_by=tuple), Tokens)
def test_match_finds_running_and_stored_prefixes(cached: list[list[int]], asked: list[int]) -> None:
    cache = _cache(ram_tokens=10_000)
    for index, tokens in enumerate(cached):
        known = cache.enter(index, "", tokens, len(tokens))
        cache.advance(index, tokens[known:])
        if index % 2:
            cache.leave(index, tokens, len(tokens))
            if index in cache.resident:
                cache.reclaim(index)
    assert cache.lookup("", asked) == _longest(cached, asked)


@given(st.lists(Tokens, max_size=30), st.integers(1, 60))
def test_stored_tokens_stay_within_the_budget(cached: list[list[int]], budget: int) -> None:
    cache = _cache(ram_tokens=budget)
    for tokens in cached:
        _run(cache, 0, tokens)
        assert cache.stored <= budget


def test_the_least_recently_used_leaf_is_evicted_first() -> None:
    cache = _cache(ram_tokens=30)
    first, second, third = [1] * 10, [2] * 10, [3] * 10
    for tokens in (first, second, third):
        _run(cache, 0, tokens)
    _run(cache, 0, first)  # used again
    _run(cache, 0, [4] * 10)
    assert [cache.lookup("", tokens) for tokens in (first, second, third)] == [10, 0, 10]


def test_eviction_spares_running_requests() -> None:
    cache = _cache(ram_tokens=10)
    _run(cache, 0, [1] * 10)
    assert cache.enter(0, "", [1] * 10, 9) == 9
    _run(cache, 1, [2] * 10)
    assert cache.lookup("", [1] * 10) >= 9


def test_a_sequence_without_a_namespace_stores_nothing() -> None:
    cache = _cache(ram_tokens=100)
    assert cache.enter(0, None, [1, 2, 3], 3) == 0
    cache.advance(0, [1, 2, 3])
    assert cache.lookup("", [1, 2, 3]) == 0
    cache.leave(0, [1, 2, 3], 3)
    assert cache.lookup("", [1, 2, 3]) == 0
    assert cache.take_operations() == [Forget(0)]


def test_two_requests_with_one_prefix_share_its_cells() -> None:
    cache = _cache(ram_tokens=100)
    cache.enter(0, "", [1, 2, 3, 4], 3)
    cache.advance(0, [1, 2, 3, 4])
    assert cache.enter(1, "", [1, 2, 3, 9], 3) == 3
    cache.advance(1, [9])
    assert cache.used == 5
    assert cache.take_operations() == [Fork(0, 1, 3)]


def test_an_idle_prefix_is_restored_from_host_memory() -> None:
    cache = _cache(ram_tokens=100)
    _run(cache, 0, [1, 2, 3, 4])
    assert cache.used == 0
    assert cache.enter(1, "", [1, 2, 3, 9], 3) == 3
    trimmed, saved, forgotten, restored = cache.take_operations()
    assert trimmed == Forget(0, 4)
    assert isinstance(saved, Save)
    assert forgotten == Forget(0)
    assert isinstance(restored, Restore)
    assert [(piece.offset, piece.length) for piece in restored.pieces] == [(0, 3)]


def test_erase_keeps_what_another_branch_shares() -> None:
    cache = _cache(ram_tokens=100)
    _run(cache, 0, [1, 2, 3, 4])
    _run(cache, 0, [1, 2, 8, 9])
    cache.take_operations()
    cache.erase("", [1, 2, 3, 4])
    assert cache.lookup("", [1, 2, 3, 4]) == 2
    assert cache.lookup("", [1, 2, 8, 9]) == 4
    cache.erase("", [1, 2, 8, 9])
    assert cache.lookup("", [1, 2, 8, 9]) == 0
    assert cache.stored == 0
    assert sum(isinstance(operation, Drop) for operation in cache.take_operations()) == 2


def test_the_tree_is_empty_after_the_last_release() -> None:
    tree = PrefixTree()
    node = tree.hold(0, "", tree.match("", [1, 2]), 0)
    node, duplicated = tree.extend(0, node, [1, 2])
    assert duplicated == 0
    tree.release(0, node)
    assert list(tree.nodes()) == []
    assert tree.hot_tokens == 0


def _cache(*, ram_tokens: int, unified: bool = True) -> PrefixCache:
    return PrefixCache(CacheShape(cells=1000, unified=unified, bytes_per_token=8, ram_bytes=8 * ram_tokens))


def _run(cache: PrefixCache, sequence: int, tokens: list[int]) -> None:
    known = cache.enter(sequence, "", tokens, len(tokens))
    cache.advance(sequence, tokens[known:])
    cache.leave(sequence, tokens, len(tokens))
    if sequence in cache.resident:
        cache.reclaim(sequence)


@given(st.lists(Tokens, max_size=10), Tokens, st.integers(0, 30))
def test_nearest_is_a_cached_sequence_that_shares_most(cached: list[list[int]], asked: list[int], most: int) -> None:
    cache = _cache(ram_tokens=10_000)
    for tokens in cached:
        _run(cache, 0, tokens)
    found = cache.nearest("", asked, most)
    assert found.length == _longest(cached, asked)
    shared = asked[: found.length] + found.following
    assert not cached or any(tokens[: len(shared)] == shared for tokens in cached)
    assert len(found.following) <= most
    if cached and len(found.following) < most:
        assert shared in cached, "it is shown to its end"
    assert cache.nearest("other", asked, most).following == []
    assert cache.nearest(None, asked, most).length == 0
