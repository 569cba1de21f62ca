"""What a directory holds, for people."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from paddock.disk_cache import clear, kept, short_names
from tests.disk_cache.spans import KEY, OTHER_KEY, Cache, accounted, chain, on_disk

EXACT = "b\0True\0()"


def _fill(directory: Path) -> None:
    one, other = Cache(directory, model="one"), Cache(directory, key=OTHER_KEY, model="other")
    one.put_all(chain("a"), 1000.0)
    one.put_all(chain("b"), 1001.0)
    one.put_all(chain(EXACT, tokens=20), 1002.0)
    other.put_all(chain("a", tokens=10, key=OTHER_KEY), 1003.0)


def _rows(directory: Path) -> set[tuple[str | None, str | None, int, int, float]]:
    return {(row.model, row.tenant, row.files, row.tokens, row.used_at) for row in kept(str(directory))}


def test_rows_by_model_and_tenant(tmp_path: Path) -> None:
    _fill(tmp_path)
    assert _rows(tmp_path) == {("one", "a", 3, 30, 1000.0), ("one", "b", 5, 50, 1002.0), ("other", "a", 1, 10, 1003.0)}
    assert sum(row.bytes for row in kept(str(tmp_path))) == sum(on_disk(tmp_path).values())
    assert {row.origin for row in kept(str(tmp_path))} == {KEY.origin, OTHER_KEY.origin}


@pytest.mark.parametrize(
    ("choice", "files", "left"),
    [
        ({}, 9, set()),
        ({"models": {"one"}}, 8, {("other", "a")}),
        ({"tenant": "a"}, 4, {("one", "b")}),
        ({"models": {"one"}, "tenant": "b"}, 5, {("one", "a"), ("other", "a")}),
        ({"models": {"none"}}, 0, {("one", "a"), ("one", "b"), ("other", "a")}),
    ],
)
def test_clearing(tmp_path: Path, choice: dict[str, Any], files: int, left: set[tuple[str, str]]) -> None:
    _fill(tmp_path)
    before = sum(on_disk(tmp_path).values())
    count, size = clear(str(tmp_path), **choice)
    assert count == files and before - size == sum(on_disk(tmp_path).values()) == accounted(tmp_path)
    assert {row[:2] for row in _rows(tmp_path)} == left
    assert len(list(tmp_path.iterdir())) == len({model for model, _ in left}) + 1, "the lock, and no empty folders"


def test_clearing_beside_a_process_that_uses_the_cache(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    written = cache.put_all(chain())
    clear(str(tmp_path))
    assert cache.touch(written, 2000.0) == written and not any(cache.has(entry) for entry in written)
    assert cache.put_all(chain()) == written and not cache.lines


def test_unreadable_files_are_listed_without_a_tenant(tmp_path: Path) -> None:
    cache = Cache(tmp_path, model="one")
    (entry,) = cache.put_all(chain(tokens=10))
    cache.path(entry).write_bytes(b"notes")
    (tmp_path / KEY.folder / "model.json").write_text("{")
    assert _rows(tmp_path) == {(None, None, 1, 10, kept(str(tmp_path))[0].used_at)}
    assert clear(str(tmp_path), tenant="") == (0, 0) and clear(str(tmp_path)) == (1, 5)


def test_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for directory in (tmp_path, tmp_path / "missing", tmp_path / "file"):
        assert kept(str(directory)) == [] and clear(str(directory)) == (0, 0)
    assert os.listdir(tmp_path) == ["file"]


def test_the_name_of_a_model_is_kept_with_its_files(tmp_path: Path) -> None:
    Cache(tmp_path, model="before").put_all(chain(tokens=10))
    Cache(tmp_path, model="after").put_all(chain(tokens=10, first=5))
    assert {row.model for row in kept(str(tmp_path))} == {"after"}, "as it is served now"


def test_files_with_the_same_name_are_told_apart_by_their_paths() -> None:
    names = short_names(["/a/one.gguf", "/b/one.gguf", "/b/two.gguf", "/b/two.gguf"])
    assert names == {"/a/one.gguf": "/a/one.gguf", "/b/one.gguf": "/b/one.gguf", "/b/two.gguf": "two.gguf"}
