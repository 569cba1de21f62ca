"""The size bound of the directory, and what is evicted first."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from paddock.disk_cache import Entry, account
from paddock.disk_cache.folders import Found
from tests.disk_cache.spans import OTHER_KEY, Cache, accounted, chain, on_disk


def _size(directory: Path) -> int:
    """The file size of a span of ten tokens and the usual state."""
    entry = Cache(directory).put(chain()[0])
    assert entry is not None
    return entry.size


def test_the_least_recently_used_span_of_any_model_is_evicted(tmp_path: Path) -> None:
    size = _size(tmp_path / "other")
    cache, other = Cache(tmp_path / "cache", 4 * size), Cache(tmp_path / "cache", 4 * size, OTHER_KEY)
    one, two, three = (cache.put_all(chain(tokens=10, first=number), 1000.0 + number)[0] for number in range(3))
    (foreign,) = other.put_all(chain(tokens=10, key=OTHER_KEY), 1003.0)
    cache.touch([one], 1004.0)
    (new,) = chain(tokens=10, first=9)
    written = cache.write(new, [bytes(100)], 100, 1005.0)
    assert written.evicted == [two.name] and written.entry is not None
    assert set(on_disk(tmp_path / "cache")) == {one.name, three.name, foreign.name, new.name}
    cache.touch([one, three, new], 1006.0)
    cache.put_all(chain(tokens=10, first=10), 1007.0)
    assert not other.has(foreign) and other.touch([foreign], 1008.0) == [foreign]
    assert not (tmp_path / "cache" / OTHER_KEY.folder).exists(), "nothing is left of the other model"


def test_the_end_of_a_chain_is_evicted_first(tmp_path: Path) -> None:
    size = _size(tmp_path / "other")
    cache = Cache(tmp_path / "cache", 6 * size)
    old = cache.put_all(chain(tokens=60))
    for number in range(1, 7):
        (entry,) = chain(tokens=10, first=number)
        written = cache.write(entry, [bytes(100)], 100, 1000.0 + number)
        assert written.evicted == [old[-number].name], "each time the last of the chain"


def test_a_new_span_does_not_evict_what_it_continues(tmp_path: Path) -> None:
    size = _size(tmp_path / "other")
    cache = Cache(tmp_path / "cache", 3 * size)
    first, second = cache.put_all(chain(tokens=20), 1000.0)
    (other,) = cache.put_all(chain(tokens=10, first=5), 1001.0)
    written = cache.write(chain()[2], [bytes(100)], 100, 1002.0, [first, second])
    assert written.evicted == [other.name]


def test_two_bounds_on_one_directory(tmp_path: Path) -> None:
    size = _size(tmp_path / "other")
    small, large = Cache(tmp_path / "cache", 2 * size), Cache(tmp_path / "cache", 10 * size)
    written = large.put_all(chain(tokens=50))
    small.clean()
    assert set(on_disk(tmp_path / "cache")) == {entry.name for entry in written[:2]}


def test_eviction_frees_a_little_more_than_it_must(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = _size(tmp_path / "other")
    cache = Cache(tmp_path / "cache", 64 * size)
    counted: list[int] = []
    real = account.Account.count

    def count(self: account.Account) -> list[Found]:
        counted.append(1)
        return real(self)

    monkeypatch.setattr(account.Account, "count", count)
    for number in range(200):
        assert cache.put(chain(tokens=10, first=number)[0], 1000.0 + number) is not None
        assert sum(on_disk(tmp_path / "cache").values()) <= 64 * size
    # Once for the new directory, and then for every third span.
    assert 1 < len(counted) <= 2 + (200 - 64) // 3 + 1


@pytest.mark.parametrize("damage", [b"", b"x" * 20, bytes(100)])
def test_an_account_that_cannot_be_read_is_counted_anew(tmp_path: Path, damage: bytes) -> None:
    cache = Cache(tmp_path)
    written = cache.put_all(chain())
    (tmp_path / "lock").write_bytes(damage)
    assert accounted(tmp_path) is None
    cache.remove(written[2:])
    assert accounted(tmp_path) is None, "unknown stays unknown"
    assert cache.put(written[2]) is not None
    assert accounted(tmp_path) == sum(entry.size for entry in written)


def test_a_lock_file_that_is_removed(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    written = cache.put_all(chain())
    (tmp_path / "lock").unlink()
    assert cache.put(chain("other")[0]) is not None
    assert accounted(tmp_path) == sum(on_disk(tmp_path).values()) > sum(entry.size for entry in written)


def test_a_lock_that_is_held_for_too_long_stops_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    written = cache.put_all(chain())
    monkeypatch.setattr(account, "_WAIT", 0.0)
    with open(tmp_path / "lock", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert cache.put(chain("other")[0]) is None and not cache.may_write(1000.0)
        assert "another process holds the lock" in cache.lines[0]
        assert all(cache.has(entry) for entry in written), "reading needs no lock"
        cache.remove(written)
        cache.clean()


class TestTemporaryFiles:
    NAME = ".300-0123456789abcdef.tmp"

    def _place(self, cache: Cache) -> tuple[Entry, Path]:
        (entry,) = cache.put_all(chain(tokens=10))
        return entry, cache.path(entry).with_name(self.NAME)

    def test_that_of_a_dead_process_is_removed(self, tmp_path: Path) -> None:
        cache = Cache(tmp_path)
        entry, path = self._place(cache)
        path.write_bytes(bytes(50))
        assert cache.all_entries() == [entry] and cache.usage().bytes == entry.size + 300
        cache.clean()
        assert not path.exists() and accounted(tmp_path) == entry.size

    def test_that_of_a_living_process_counts_in_full(self, tmp_path: Path) -> None:
        cache = Cache(tmp_path)
        entry, path = self._place(cache)
        path.write_bytes(bytes(50))
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            cache.clean()
            assert path.exists() and accounted(tmp_path) == entry.size + 300
            small = Cache(tmp_path, entry.size + 250)
            assert small.put(chain(tokens=10, first=5)[0]) is None, "there is no room beside it"
            assert not small.lines
        cache.clean()
        assert not path.exists() and on_disk(tmp_path) == {}

    def test_what_only_looks_like_one_is_left_alone(self, tmp_path: Path) -> None:
        cache = Cache(tmp_path)
        _, path = self._place(cache)
        os.mkfifo(path)
        cache.clean()
        assert path.exists()
