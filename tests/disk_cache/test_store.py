"""Spans in files."""

from __future__ import annotations

import os
from pathlib import Path

from paddock.disk_cache import DiskCache, Entry, StateKey, clear, entries_for, kept
from paddock.types import StateOrigin

KEY = StateKey(StateOrigin("engine 1", "digest", "f16", "f16", True, "n_threads 2"))


def _chain(namespace: str = "", tokens: int = 30, step: int = 10) -> list[Entry]:
    return entries_for(KEY, namespace, list(range(tokens)), range(0, tokens + 1, step))


def test_a_written_span_is_found_and_read_by_another_process(tmp_path: Path) -> None:
    lines: list[str] = []
    cache = DiskCache(str(tmp_path / "cache"), 1 << 20, KEY, model="model", log=lines.append)
    assert list(cache.entries()) == [] and cache.usage().bytes == 0
    written: list[Entry] = []
    for entry in _chain():
        found = cache.write(entry, [entry.token_bytes, memoryview(b"state")], 45, 1000.0, written).entry
        assert found is not None
        written.append(found)
    other = DiskCache(str(tmp_path / "cache"), 1 << 20, KEY, log=lines.append)
    assert sorted(other.entries(), key=lambda entry: entry.start) == written
    for entry in written:
        state = other.read(entry)
        assert state is not None and bytes(state) == entry.token_bytes + b"state"
    assert other.usage().bytes == sum(entry.size for entry in written)
    (row,) = kept(str(tmp_path / "cache"))
    assert (row.model, row.tenant, row.files, row.tokens, row.used_at) == ("model", "", 3, 30, 1000.0)
    assert row.origin == KEY.origin
    assert clear(str(tmp_path / "cache"), model="other") == (0, 0)
    assert clear(str(tmp_path / "cache"), model="model") == (3, row.bytes)
    assert sorted(os.listdir(tmp_path / "cache")) == ["CACHEDIR.TAG", "lock"]
    assert other.read(written[0]) is None and not lines
