"""Several processes on one directory: killed while they write, and all at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.disk_cache.spans import Cache, accounted, chain, on_disk
from tests.tiers import is_full_tier


def _run(*arguments: str | Path | int) -> None:
    command = [sys.executable, "-m", "tests.disk_cache.writers", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr


def test_a_writer_that_is_killed_leaves_only_whole_spans(tmp_path: Path) -> None:
    _run("killed", tmp_path / "cache", 200 if is_full_tier() else 40)


def test_processes_that_write_and_evict_at_once(tmp_path: Path) -> None:
    _run("together", tmp_path / "cache", 3, 100 if is_full_tier() else 20)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", path], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root can mount a file system")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    cache = Cache(small_disk / "cache", 1 << 30)
    written = [cache.put(chain(tokens=10, first=number)[0], size=100_000) for number in range(20)]
    kept = [entry for entry in written if entry is not None]
    assert 5 < len(kept) < 20 and written[: len(kept)] == kept
    assert len(cache.lines) == 1 and "No space left on device" in cache.lines[0]
    assert all(cache.has(entry) for entry in kept) and set(cache.all_entries()) == set(kept)
    files = on_disk(small_disk / "cache")
    assert files == {entry.name: entry.size for entry in kept} and accounted(small_disk / "cache") == sum(
        files.values()
    )
    cache.remove(kept[:3])
    assert cache.put(chain(tokens=10, first=99)[0], 2000.0, size=100_000) is not None
