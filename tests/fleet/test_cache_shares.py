"""Shares of `cache_ram` under a memory limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddock.fleet.memory.cache_shares import cache_room, cache_shares, is_significant

MIB = 1 << 20
_bytes = st.integers(0, 1 << 40)


@given(_bytes, _bytes, _bytes)
def test_cache_room_respects_both_limits(cache_ram: int, limit: int, taken: int) -> None:
    room = cache_room(cache_ram, limit, taken)
    assert 0 <= room <= cache_ram
    assert room + taken <= max(limit, taken)
    assert cache_room(cache_ram, None, taken) == cache_ram


@given(_bytes, st.dictionaries(st.text(max_size=3), _bytes, max_size=6))
def test_shares_are_equal_up_to_the_limits(room: int, most: dict[str, int]) -> None:
    shares = cache_shares(room, most)
    assert shares.keys() == most.keys()
    assert sum(shares.values()) <= room
    assert all(share <= most[name] for name, share in shares.items())
    below = [share for name, share in shares.items() if share < most[name]]
    if below:
        assert max(shares.values()) - min(below) <= len(most), "no share exceeds one that is below its limit"
        assert room - sum(shares.values()) <= len(most), "the rest is divided too"


def test_a_single_model_gets_everything() -> None:
    assert cache_shares(800 * MIB, {"a": 1 << 62}) == {"a": 800 * MIB}
    assert cache_shares(800 * MIB, {"a": 1 << 62, "b": 100 * MIB}) == {"a": 700 * MIB, "b": 100 * MIB}
    assert cache_shares(800 * MIB, {}) == {}


def test_small_changes_are_not_significant() -> None:
    assert not is_significant(100 * MIB, 97 * MIB)
    assert is_significant(100 * MIB, 50 * MIB)
    assert is_significant(0, 1)
    assert is_significant(MIB, 0)
    assert not is_significant(0, 0)
