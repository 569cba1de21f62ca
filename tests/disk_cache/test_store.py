"""Spans in files."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddock.disk_cache import RETRY_AFTER, StateKey
from tests.disk_cache.spans import KEY, LARGE, ORIGIN, OTHER_KEY, Cache, accounted, chain, on_disk, state_of

_several = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_a_written_span_is_found_and_read_by_another_process(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    assert cache.all_entries() == [] and cache.usage().bytes == 0
    cache.clean()
    assert not (tmp_path / "cache").exists(), "reading creates nothing"
    written = cache.put_all(chain())
    other = Cache(tmp_path / "cache")
    assert sorted(other.all_entries(), key=lambda entry: entry.start) == written
    assert all(other.has(entry) for entry in written)
    assert (other.usage().files, other.usage().bytes) == (3, sum(on_disk(tmp_path / "cache").values()))
    assert not cache.lines + other.lines


def test_a_span_is_written_once(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    (entry,) = cache.put_all(chain(tokens=10))
    inode = cache.path(entry).stat().st_ino
    assert Cache(tmp_path).put(entry, 2000.0) == entry
    assert cache.path(entry).stat().st_ino == inode and cache.path(entry).stat().st_mtime == 2000
    assert accounted(tmp_path) == entry.size


def test_files_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Cache(tmp_path / "parent" / "cache").put_all(chain("tenant"))
    finally:
        os.umask(before)
    for folder, _, names in os.walk(tmp_path / "parent" / "cache"):
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
        for name in set(names) - {"CACHEDIR.TAG"}:
            assert stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode) == 0o600
            assert "tenant" not in name


def test_a_folder_that_is_not_private_is_not_used(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    (entry,) = cache.put_all(chain(tokens=10))
    (tmp_path / KEY.folder).chmod(0o755)
    assert not cache.has(entry) and cache.put(chain("other")[0]) is None
    assert any("mode must be 0700" in line for line in cache.lines)


def test_files_and_folders_of_another_user_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    (entry,) = cache.put_all(chain(tokens=10))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert not cache.has(entry) and cache.put(chain("other")[0]) is None and cache.all_entries() == []
    assert any("belongs to another user" in line for line in cache.lines)
    assert cache.path(entry).exists()


def test_tenants_and_models_do_not_share(tmp_path: Path) -> None:
    one, other = Cache(tmp_path), Cache(tmp_path, key=OTHER_KEY)
    mine = one.put_all(chain("a"))
    assert not any(one.has(entry) for entry in chain("b"))
    assert other.all_entries() == [] and not any(other.has(entry) for entry in chain("a", key=OTHER_KEY))
    # Not even if the file is copied: its header says whose it is.
    theirs = one.put_all(chain("b"))
    one.path(theirs[0]).write_bytes(one.path(mine[0]).read_bytes())
    assert not one.has(theirs[0]) and "belongs to another file" in one.lines[-1]
    assert all(one.has(entry) for entry in mine)


def test_a_namespace_depends_on_its_own_adapters_and_arithmetic_only() -> None:
    plain, exact, adapted = "t", "t\0True\0()", "t\0False\0((1, 0.5),)"

    def changed(**fields: Any) -> list[bool]:
        key = StateKey(msgspec.structs.replace(ORIGIN, **fields))
        return [key.scope(namespace) != KEY.scope(namespace) for namespace in (plain, exact, adapted)]

    assert changed() == [False, False, False]
    assert changed(arithmetic="n_threads 3") == [False, True, False]
    assert changed(adapters=("a",)) == [False, False, False]
    assert changed(adapters=("a", "b")) == [False, False, True]
    for field in set(ORIGIN.__struct_fields__) - {"arithmetic", "adapters"}:
        assert changed(**{field: "other"}) == [True, True, True], field
    # What cannot be read depends on everything.
    for odd in ("t\0", "t\0False\0nonsense(", "t\0False\x005"):
        for fields in ({"arithmetic": "n_threads 3"}, {"adapters": ("a",)}):
            assert StateKey(msgspec.structs.replace(ORIGIN, **fields)).scope(odd) != KEY.scope(odd)


def test_spans_of_other_adapters_are_left_alone(tmp_path: Path) -> None:
    namespace = "t\0False\0((0, 0.5),)"
    before = StateKey(msgspec.structs.replace(ORIGIN, adapters=("before",)))
    written = Cache(tmp_path, key=before).put_all(chain(namespace, key=before))
    cache = Cache(tmp_path)
    assert cache.all_entries() == [] and not cache.lines
    assert len(Cache(tmp_path, key=before).all_entries()) == len(written)


# ── files that are not as they were written ──────────────────────────────────────────────────────────────────────────


@_several
@given(st.data())
def test_damage_is_found_at_any_offset(tmp_path: Path, data: st.DataObject) -> None:
    cache = Cache(tmp_path / "cache")
    (entry,) = cache.put_all(chain(tokens=10))
    path = cache.path(entry)
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = bytes([whole[at] ^ data.draw(st.integers(1, 255))])
    damaged = data.draw(
        st.sampled_from(
            [
                whole[:at],
                whole[:at] + bytes(len(whole) - at),
                whole[:at] + changed + whole[at + 1 :],
                whole + bytes(at + 1),
                b"",
            ]
        )
    )
    path.write_bytes(damaged)
    listed = cache.all_entries()
    assert listed in ([], [entry])
    usable = cache.has(entry)
    assert usable <= (listed == [entry])
    if not usable and path.exists():
        assert path.read_bytes()[:8] != b"PADDSPAN" or damaged[8:12] != whole[8:12], "only what may be foreign is kept"
    elif not usable:
        assert any("is damaged, and is removed" in line for line in cache.lines)
        assert len(cache.lines) == 1
        assert cache.put(entry) == entry and cache.has(entry), "it is written again"
    path.unlink(missing_ok=True)


def test_a_file_of_another_version_is_left_alone(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    (entry,) = cache.put_all(chain(tokens=10))
    data = bytearray(cache.path(entry).read_bytes())
    data[8:12] = (2).to_bytes(4, "little")
    cache.path(entry).write_bytes(data)
    assert cache.all_entries() == [] and not cache.has(entry) and cache.path(entry).exists()
    assert "format version 2, and this server reads version 1" in cache.lines[0]


@pytest.mark.parametrize("kind", ["link", "link to a folder", "pipe", "folder", "dangling link"])
def test_what_is_not_a_span_is_neither_read_nor_changed(tmp_path: Path, kind: str) -> None:
    cache = Cache(tmp_path / "cache", 2000)
    (entry,) = cache.put_all(chain(tokens=10))
    path, secret = cache.path(entry), tmp_path / "secret"
    path.rename(secret)
    if kind == "link":
        path.symlink_to(secret)
    elif kind == "link to a folder":
        path.symlink_to(tmp_path)
    elif kind == "dangling link":
        path.symlink_to(tmp_path / "nothing")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    before = os.lstat(path)
    assert cache.all_entries() == [] and not cache.has(entry)
    cache.touch([entry], 5.0)
    assert cache.put(entry) is None
    cache.remove([entry])
    for number in range(2, 20):  # more than fits
        assert cache.put(chain(first=number)[0], 1000.0 + number) is not None
    assert secret.stat().st_size == entry.size and os.lstat(path).st_ino == before.st_ino
    assert cache.may_write(1000.0), "this is no reason to stop"


def test_a_foreign_file_is_not_read_or_removed(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    (entry,) = cache.put_all(chain(tokens=10))
    cache.path(entry).write_text("some notes")
    assert cache.all_entries() == [] and not cache.has(entry)
    assert cache.path(entry).read_text() == "some notes"
    assert len(cache.lines) == 2 and all("is not a span of the cache" in line for line in cache.lines)


@pytest.mark.parametrize("level", ["model", "namespace"])
def test_folders_that_are_links_are_not_followed(tmp_path: Path, level: str) -> None:
    cache = Cache(tmp_path / "cache")
    (entry,) = cache.put_all(chain(tokens=10))
    folder = cache.path(entry).parent if level == "namespace" else cache.path(entry).parent.parent
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert cache.all_entries() == [] and not cache.has(entry) and cache.usage().files == 0
    assert cache.put(chain("")[1]) is None and not cache.may_write(1000.0)
    assert len(list((tmp_path / "elsewhere").rglob("*.kv"))) == 1


def test_other_names_are_left_alone(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1000)
    (entry,) = cache.put_all(chain(tokens=10))
    others = [cache.path(entry).parent / name for name in ("notes.txt", f"{'0' * 64}.kv", ".5-xyz.tmp", "0-1.kv")]
    others += [tmp_path / "folder" / entry.name, tmp_path / entry.name]
    for other in others:
        other.parent.mkdir(exist_ok=True)
        other.write_bytes(bytes(5000))
    for number in range(2, 20):
        assert cache.put(chain(first=number)[0], 1000.0 + number) is not None
    assert not cache.has(entry) and all(other.stat().st_size == 5000 for other in others)


# ── the disk ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT", "EIO", "EROFS", "EACCES"])
def test_a_disk_that_refuses_stops_writing_and_not_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    cache = Cache(tmp_path)
    first, *rest = chain(tokens=60)
    assert (written := cache.put(first)) is not None

    def refuse(*_: Any) -> int:
        raise OSError(getattr(errno, error), os.strerror(getattr(errno, error)))

    tries = 0

    def pwrite(descriptor: int, data: memoryview, at: int) -> int:
        nonlocal tries
        tries += 1
        return refuse() if len(data) > 20 else real(descriptor, data, at)

    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", pwrite)
    assert cache.put(rest[0], 1000.0) is None and not cache.may_write(1000.0)
    seen = tries
    assert cache.put(rest[0], 1000.0 + RETRY_AFTER / 2) is None and tries == seen, "it is not tried at once"
    paused = cache.write(rest[0], [bytes(100)], 100, 1000.0 + RETRY_AFTER / 2)
    assert paused.entry is None and paused.is_refused
    tried = cache.write(rest[0], [bytes(100)], 100, 1000.0 + RETRY_AFTER)
    assert tried.entry is None and tried.is_refused and tries > seen, "it is tried again"
    assert cache.has(written) and cache.all_entries() == [written]
    assert on_disk(tmp_path) == {written.name: written.size} and accounted(tmp_path) == written.size
    assert len(cache.lines) == 1 and os.strerror(getattr(errno, error)) in cache.lines[0]
    monkeypatch.setattr(os, "pwrite", real)
    assert cache.put(rest[0], 1000.0 + 2 * RETRY_AFTER) is not None
    assert len(cache.lines) == 2 and "written again" in cache.lines[1]


def test_a_span_that_can_never_be_written_is_not_refused_for_now(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 50)
    written = cache.write(chain()[0], [bytes(100)], 100, 1000.0)
    assert written.entry is None and not written.is_refused


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, at: real(descriptor, data[:7], at))
    cache = Cache(tmp_path)
    (entry,) = cache.put_all(chain(tokens=10))
    assert cache.has(entry)


@pytest.mark.parametrize("size", [99, 101])
def test_a_state_of_another_size_is_a_bug_of_the_caller(tmp_path: Path, size: int) -> None:
    cache = Cache(tmp_path)
    with pytest.raises(AssertionError, match=f"a state of 100 bytes instead of {size}"):
        cache.write(chain()[0], [bytes(100)], size, 1000.0)
    assert on_disk(tmp_path) == {} and accounted(tmp_path) == 0


def test_an_error_of_the_caller_leaves_no_file(tmp_path: Path) -> None:
    def parts() -> Any:
        yield bytes(50)
        raise RuntimeError("from the caller")

    cache = Cache(tmp_path)
    with pytest.raises(RuntimeError, match="from the caller"):
        cache.write(chain()[0], parts(), 100, 1000.0)
    assert on_disk(tmp_path) == {} and accounted(tmp_path) == 0 and cache.may_write(1000.0)


def test_an_unreadable_disk_is_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    (entry,) = cache.put_all(chain(tokens=10))

    def pread(*_: Any) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", pread)
        assert not cache.has(entry) and cache.all_entries() == []
    assert cache.lines and all("Input/output error" in line for line in cache.lines)
    assert cache.has(entry), "it is kept: another read may succeed"


def test_data_that_cannot_be_read_is_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And does not end the process, as an unreadable page of a mapped file would."""
    cache = Cache(tmp_path)
    (entry,) = cache.put_all(chain(tokens=10))

    def preadv(*_: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", preadv)
        assert not cache.has(entry)
    assert cache.lines == [f"a file of the disk cache cannot be used, and is skipped: {entry.name}: Input/output error"]
    assert cache.has(entry), "it is kept: another read may succeed"


@pytest.mark.parametrize("most", [1, 7, 99, 100, 1000])
def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    cache = Cache(tmp_path)
    (entry,) = cache.put_all(chain(tokens=10))
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, views, at: preadv(file, [views[0][:most]], at))
    assert cache.has(entry)


def test_a_file_that_becomes_shorter_while_it_is_read_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path)
    (entry,) = cache.put_all(chain(tokens=10))
    monkeypatch.setattr(os, "preadv", lambda *_: 0)
    assert not cache.has(entry) and not cache.path(entry).exists()
    assert "is damaged, and is removed" in cache.lines[0] and "it ends after" in cache.lines[0]


@pytest.mark.parametrize("size", [100, (1 << 20) + 1])
def test_a_state_outlives_its_file_in_the_given_memory(tmp_path: Path, size: int) -> None:
    cache = Cache(tmp_path)
    (entry,) = cache.put_all(chain(tokens=10), size=size)
    blocks: list[bytearray] = []

    def new_block(size: int) -> bytearray:
        blocks.append(bytearray(size))
        return blocks[-1]

    state = cache.read(entry, new_block)
    cache.remove([entry])
    assert state is not None and state == state_of(entry, size) and not cache.has(entry)
    assert state.obj is blocks[0] and len(blocks) == 1 and not state.readonly


def test_a_directory_that_vanishes_is_created_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    written = cache.put_all(chain())
    (tmp_path / "cache").rename(tmp_path / "elsewhere")
    assert not cache.has(written[0]) and cache.touch(written, 2000.0) == written and cache.all_entries() == []
    cache.remove(written)
    assert cache.put(written[0]) == written[0] and cache.has(written[0]) and not cache.lines


def test_a_directory_that_exists_is_not_marked_as_a_cache(tmp_path: Path) -> None:
    Cache(tmp_path).put_all(chain())
    Cache(tmp_path / "new").put_all(chain())
    assert not (tmp_path / "CACHEDIR.TAG").exists(), "a backup would leave out all that is there"
    assert (tmp_path / "new" / "CACHEDIR.TAG").exists()


def test_a_span_larger_than_the_bound_is_not_written(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1000)
    kept = cache.put(chain()[0])
    assert kept is not None and cache.put(chain()[1], size=1000) is None and cache.has(kept)
    assert Cache(tmp_path / "none", 0).put(chain()[0]) is None and not (tmp_path / "none").exists()
    assert not cache.lines and cache.limit_bytes < LARGE
