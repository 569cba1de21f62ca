"""Host memory for prefixes is shared between tenants: the share of one is not evicted for another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling.cache import Cache
from paddock.scheduling.quota import IDLE_AFTER, Quota, tenant_of
from tests.scheduling.test_prefix_tree import _cache
from tests.scheduling.test_snapshot_cache import SIZE
from tests.scheduling.test_snapshot_cache import _cache as _snapshots

SMALL = 40


def _run(cache: Cache, namespace: str, tokens: list[int]) -> int:
    """Returns how many tokens were cached."""
    known = cache.enter(0, namespace, tokens, len(tokens) - 1)
    cache.advance(0, tokens[known:])
    cache.leave(0, tokens, len(tokens))
    if 0 in cache.resident:
        cache.reclaim(0)
    cache.take_operations()
    return known


def _prompt(number: int, size: int = 10) -> list[int]:
    return [number] * size


@given(st.lists(st.tuples(st.sampled_from(["flood", "flood\0True\0()"]), st.integers(0, 200)), max_size=60))
def test_a_flooding_tenant_leaves_another_its_share(flood: list[tuple[str, int]]) -> None:
    for cache in (_cache(ram_tokens=SMALL), _snapshots(ram=4 * SIZE.bytes(10))):
        _run(cache, "other", _prompt(1))
        _run(cache, "other", _prompt(2))
        for namespace, number in flood:
            _run(cache, namespace, _prompt(number))
        assert [cache.lookup("other", [*_prompt(number), 7]) for number in (1, 2)] == [10, 10]


def test_a_single_tenant_may_fill_memory_until_another_comes() -> None:
    cache = _cache(ram_tokens=SMALL)
    for number in range(4):
        _run(cache, "first", _prompt(number))
    assert [cache.lookup("first", _prompt(number)) for number in range(4)] == [10] * 4
    _run(cache, "second", _prompt(1))
    _run(cache, "second", _prompt(2))
    assert [cache.lookup("first", _prompt(number)) for number in range(4)] == [0, 0, 10, 10]
    _run(cache, "second", _prompt(3))
    assert [cache.lookup("first", _prompt(number)) for number in range(4)] == [0, 0, 10, 10]
    assert [cache.lookup("second", _prompt(number)) for number in range(1, 4)] == [0, 10, 10]


def test_an_idle_tenant_loses_its_share() -> None:
    cache = _cache(ram_tokens=SMALL)
    _run(cache, "gone", _prompt(1))
    for number in range(SMALL * (IDLE_AFTER + 1) // 10 + 8):
        _run(cache, "busy", _prompt(number))
    assert cache.lookup("gone", _prompt(1)) == 0
    assert cache.stored == SMALL


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 30)), max_size=100),
    st.integers(30, 100),
)
def test_no_tenant_is_evicted_below_its_share(added: list[tuple[str, int]], budget: int) -> None:
    quota = Quota(budget)
    total = 0
    for tenant, size in added:
        while total + size > budget:
            victim = quota.victim(tenant, size)
            if victim is None:
                break
            tenants = {name for name in "abcd" if quota.held(name)} | {tenant}
            assert quota.held(victim) + (size if victim == tenant else 0) > budget / len(tenants)
            quota.remove(victim, 1)
            total -= 1
        else:
            quota.add(tenant, size)
            total += size
        assert total == sum(quota.held(name) for name in "abcd") <= budget


def test_namespaces_of_a_tenant_share_its_quota() -> None:
    assert tenant_of("garden") == tenant_of("garden\0True\0()") == "garden"
