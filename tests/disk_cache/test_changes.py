"""What other processes write and remove is found by a process that runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paddock.disk_cache import DirectoryChanges
from tests.disk_cache.spans import Cache, chain


def test_later_files_of_another_process_are_found(tmp_path: Path) -> None:
    one, other = Cache(tmp_path), Cache(tmp_path)
    changes = DirectoryChanges(other)
    assert not changes.look(), "there is no folder yet"
    written = one.put_all(chain("a")) + one.put_all(chain("b"))
    found = changes.look().found
    assert set(found) == set(written) and all(other.has(entry) for entry in found)
    assert not changes.look()
    one.remove(written[1:3])
    later = one.put_all(chain("a", first=50))
    changed = changes.look()
    assert (set(changed.found), set(changed.gone)) == (set(later), {entry.name for entry in written[1:3]})
    one.remove(written + later)
    assert len(changes.look().gone) == 7, "with their folders"


def test_what_changes_in_the_moment_of_a_look_is_found_by_the_next(tmp_path: Path) -> None:
    """Files that are written within one tick of the file system's clock leave the same time at their folder."""
    cache = Cache(tmp_path)
    changes = DirectoryChanges(cache)
    for first in range(2):
        cache.put_all(chain(first=first))
        os.utime(cache.path(chain()[0]).parent, ns=(5, 5))
        assert len(changes.look().found) == 3


def test_a_file_that_was_removed_here_and_written_again_by_another_process_is_found(tmp_path: Path) -> None:
    one, other = Cache(tmp_path), Cache(tmp_path)
    changes = DirectoryChanges(one)
    written = one.put_all(chain())
    changes.look()
    one.remove(written[2:])
    changes.forget([written[2].name])
    other.put_all(chain())
    assert changes.look().found == written[2:]


def test_a_folder_that_does_not_change_is_not_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    cache.put_all(chain())
    changes = DirectoryChanges(cache)
    changes.look()
    changes.look()
    monkeypatch.setattr("paddock.disk_cache.folders.span_names", lambda *_: pytest.fail("it was listed"))
    assert not changes.look()


def test_a_file_that_cannot_be_used_is_logged_once(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    (entry,) = cache.put_all(chain(tokens=10))
    cache.path(entry).write_text("some notes")
    changes = DirectoryChanges(cache)
    for _ in range(3):
        assert not changes.look().found
    assert len(cache.lines) == 1


def test_many_files_are_read_in_several_looks(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    written = cache.put_all(chain(tokens=100)) + cache.put_all(chain("other"))
    changes = DirectoryChanges(cache)
    looks = [changes.look(4) for _ in range(5)]
    assert [(len(look.found), look.is_complete) for look in looks] == [
        (4, False),
        (4, False),
        (4, False),
        (1, True),
        (0, True),
    ]
    assert {entry for look in looks for entry in look.found} == set(written)


def test_a_look_that_only_met_unusable_files_is_not_the_last(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    (entry,) = cache.put_all(chain(tokens=10))
    os.mkfifo(cache.path(entry).with_name(f"{0:064x}-0-1.kv"))
    changes = DirectoryChanges(cache)
    looks = [changes.look(1) for _ in range(2)]
    assert [span for look in looks for span in look.found] == [entry]
    assert [look.is_complete for look in looks] == [False, True]
