"""The integrity check: free + used cells == total, and the counters of host memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling import CacheCorrupted
from paddock.scheduling.prefix_cache import PrefixCache
from paddock.scheduling.snapshot_cache import SnapshotCache
from tests.scheduling.harness import CUT, Harness, Memories, Texts


@given(st.lists(Texts, min_size=1, max_size=5), st.booleans(), Memories)
def test_the_check_passes_after_every_step_and_when_idle(texts: list[str], unified: bool, whole: bool | str) -> None:
    harness = Harness(n_ctx=160, kv_unified=unified, whole=whole, cache_ram_bytes=150 * 1024)
    for id, text in enumerate(texts):
        harness.ask(id, text)
    while harness.step() is not None:
        harness.scheduler.cache.check_integrity()
    harness.scheduler.check_idle()
    assert set(harness.engine.used_sequences()) == set(harness.scheduler.cache.resident)


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("whole", [False, True, CUT])
def test_the_check_finds_a_sequence_that_was_not_released(unified: bool, whole: bool | str) -> None:
    harness = Harness(kv_unified=unified, whole=whole)
    harness.scheduler.check_idle()
    harness.scheduler.cache.enter(0, None, [1, 2, 3], 0)
    harness.scheduler.cache.advance(0, [1, 2, 3])
    with pytest.raises(CacheCorrupted, match=r"509 free \+ 0 idle|2045 free \+ 0 idle"):
        harness.scheduler.check_idle()


def test_the_check_finds_a_wrong_count_of_cells() -> None:
    harness = Harness()
    cache = harness.scheduler.cache
    assert isinstance(cache, PrefixCache)
    cache._tree.hot_tokens += 2
    with pytest.raises(CacheCorrupted, match=r"510 free cells \+ 0 used cells != 512"):
        harness.scheduler.check_idle()


def test_the_check_finds_a_wrong_count_of_snapshot_cells() -> None:
    harness = Harness(whole=True)
    cache = harness.scheduler.cache
    assert isinstance(cache, SnapshotCache)
    cache._used -= 1
    with pytest.raises(CacheCorrupted, match=r"513 free cells \+ 0 used cells != 512"):
        harness.scheduler.check_idle()


@pytest.mark.parametrize("whole", [False, True, CUT])
def test_the_check_finds_a_wrong_count_of_host_memory(whole: bool | str) -> None:
    harness = Harness(whole=whole)
    harness.ask(1, "a" * 40)
    harness.run()
    harness.scheduler.check_idle()
    harness.scheduler.cache._quota.total += 1
    with pytest.raises(CacheCorrupted, match="stored spans take"):
        harness.scheduler.check_idle()
