from __future__ import annotations

import json
import os
import sqlite3
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paddock.batches.records import Batch, Mistake, NewLine, Result, StoredFile, TokenUsage
from paddock.batches.store import Store
from paddock.errors import BatchesUnavailable, InvalidRequest, NotFound
from paddock.storage import DataFolder
from tests.batches.crashing import Crash, Disk
from tests.tiers import examples, full

_LINES = 12
_MEMORY = Path("/dev/shm")
"""Syncing to a real disk takes most of the time."""


def batch_of(folder: DataFolder, store: Store, *, owner: str = "", lines: int = _LINES) -> Batch:
    """A running batch of so many lines."""
    input_file = StoredFile(f"file-in-{owner}", owner, "in.jsonl", "batch", 10, 1)
    folder.upload(input_file.id).write_bytes(b"x" * 10)
    store.files.add(input_file)
    batch = new_batch(f"batch_{owner}", input_file.id, owner)
    store.add_batch(batch)
    assert store.add_lines(batch.id, [NewLine(n, f"id-{n}", n, 1) for n in range(1, lines + 1)]) == []
    return store.start(batch.id, total=lines, model="m", identity="i", now=2)


def new_batch(id: str, input_file: str, owner: str = "") -> Batch:
    return Batch(
        id=id,
        owner=owner,
        dialect="openai",
        endpoint="/v1/chat/completions",
        input_file=input_file,
        output_file=f"file-out-{id}",
        error_file=f"file-err-{id}",
        window="24h",
        created_at=1,
        expires_at=10**9,
    )


def result(number: int, *, failed: bool = False) -> Result:
    body = json.dumps({"answer": number, "receipt": {"kept": True}}).encode()
    return Result(number, f"id-{number}", body, 500 if failed else 200, f"req_{number}", usage=TokenUsage(1, 0, 2, 0))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


class StoreWithCrashes(RuleBasedStateMachine):
    """Results are added while the process is killed at any operation. What was committed remains, each line once."""

    @initialize()
    def start(self) -> None:
        self.temporary = tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.exists() else None)
        self.folder = DataFolder(Path(self.temporary.name))
        self.folder.lock()
        self.disk = Disk()
        self.patched = self.disk.used()
        self.patched.__enter__()
        self.store = Store(self.folder)
        self.batch = batch_of(self.folder, self.store)
        self.answered: set[int] = set()
        """Acknowledged."""
        self.tried: set[int] = set()
        """Perhaps committed: the crash came before the acknowledgement."""
        self.ended = False

    def teardown(self) -> None:
        self.store.close()
        self.patched.__exit__(None, None, None)
        self.folder.unlock()
        self.temporary.cleanup()

    def _crashing(self, after: int | None, operation: Any, *args: Any) -> Any:
        """The result, or None after a crash, which ends with a restart."""
        self.disk.left = after
        try:
            return operation(*args)
        except Crash:
            self._restart()
            return None
        finally:
            self.disk.left = None

    def _restart(self) -> None:
        self.store.close()
        self.disk.dead, self.disk.left = False, None
        self.store = Store(self.folder)

    @precondition(lambda self: not self.ended)
    @rule(
        numbers=st.lists(st.integers(1, _LINES), min_size=1, max_size=5),
        failed=st.booleans(),
        crash=st.none() | st.integers(0, 12),
    )
    def add(self, numbers: list[int], failed: bool, crash: int | None) -> None:
        ended = [result(number, failed=failed and number % 2 == 0) for number in numbers]
        if self._crashing(crash, self.store.add_results, self.batch.id, ended) is not None:
            self.answered |= set(numbers)
        else:
            self.tried |= set(numbers)

    @precondition(lambda self: not self.ended)
    @rule(number=st.integers(1, _LINES))
    def disk_is_full(self, number: int) -> None:
        self.disk.full = True
        with pytest.raises((OSError, sqlite3.OperationalError)) if number not in self._known() else nullcontext():
            self.store.add_results(self.batch.id, [result(number)])
        self.disk.full = False

    @rule(crash=st.none() | st.integers(0, 8), again=st.none() | st.integers(0, 8))
    def restart(self, crash: int | None, again: int | None) -> None:
        """Also while it recovers, twice in a row."""
        self.store.close()
        for left in (crash, again, None):
            self.disk.dead, self.disk.left = False, left
            try:
                self.store = Store(self.folder)
                break
            except Crash:
                continue
        self.disk.left = None

    @precondition(lambda self: not self.ended)
    @rule(kept=st.integers(0, 2000))
    def lose_end_of_output(self, kept: int) -> None:
        """As after a power failure on a disk that does not sync. Lost lines are run again."""
        self.store.close()
        path = self.folder.file(self.batch.output_file)
        if path.exists() and path.stat().st_size > kept:
            with path.open("rb+") as file:
                file.truncate(kept)
        self.store = Store(self.folder)
        present = self._known()
        self.tried |= self.answered - present
        self.answered &= present

    @precondition(lambda self: not self.ended)
    @rule(crash=st.none() | st.integers(0, 12), after=st.sampled_from(["completed", "expired"]))
    def end(self, crash: int | None, after: str) -> None:
        if after == "completed" and len(self._known()) < _LINES:
            return
        self._crashing(None, self.store.begin_end, self.batch.id, after, 5)
        while (waiting := self.store.waiting(self.batch.id, limit=5)) and not self.disk.dead:
            reason = ("batch_expired", "too late")
            ended = [Result(line.number, line.custom_id, None, error=reason) for line in waiting]
            if self._crashing(crash, self.store.add_results, self.batch.id, ended) is None:
                crash = None
        if self._crashing(crash, self.store.end, self.batch.id, 6) is None:
            self.store.end(self.batch.id, 6)
        self.ended = True

    def _lines(self) -> list[dict[str, Any]]:
        return [
            line
            for file in (self.batch.output_file, self.batch.error_file)
            for line in lines_of(self.folder.file(file))
        ]

    def _known(self) -> set[int]:
        return {int(line["custom_id"].removeprefix("id-")) for line in self._lines()}

    @invariant()
    def every_line_is_answered_once_or_waits(self) -> None:
        lines = self._lines()
        assert len({line["custom_id"] for line in lines}) == len(lines)
        assert self.answered <= self._known() <= self.answered | self.tried or self.ended
        waiting = {line.number for line in self.store.waiting(self.batch.id, limit=100)}
        now = self.store.batch("", self.batch.id, "openai")
        if self.ended:
            assert self._known() == set(range(1, _LINES + 1))
            assert now.unanswered == 0
            shown = {file.id for file in self.store.files.page("", after=None, limit=10)[0]}
            assert {f for f, p in ((now.output_file, now.output), (now.error_file, now.errors)) if p.lines} <= shown
        else:
            assert waiting == set(range(1, _LINES + 1)) - self._known()
            assert now.unanswered == len(waiting)

    @invariant()
    def sizes_are_those_of_the_files(self) -> None:
        now = self.store.batch("", self.batch.id, "openai")
        for file, part in ((now.output_file, now.output), (now.error_file, now.errors)):
            path = self.folder.file(file)
            assert part.size == (path.stat().st_size if path.exists() else 0)
            assert part.lines == len(lines_of(path))


StoreWithCrashes.TestCase.settings = settings(examples(200), stateful_step_count=20)
TestStoreWithCrashes = StoreWithCrashes.TestCase


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    folder = DataFolder(tmp_path / "data")
    folder.lock()
    return folder


@pytest.fixture
def store(folder: DataFolder) -> Store:
    return Store(folder)


def test_replies_are_copied_unchanged(folder: DataFolder, store: Store) -> None:
    batch = batch_of(folder, store)
    reply = b'{"b":1.50,  "a":[1,2],"receipt":null}'
    store.add_results(batch.id, [Result(1, "id-1", reply, 200, "req_1")])
    assert reply in folder.file(batch.output_file).read_bytes()


def test_a_second_server_is_refused(folder: DataFolder) -> None:
    with pytest.raises(BatchesUnavailable, match=f"process {os.getpid()}.*--data-dir"):
        DataFolder(folder.path).lock()
    folder.unlock()
    DataFolder(folder.path).lock()


def test_a_newer_format_is_refused(folder: DataFolder, store: Store) -> None:
    store.close()
    database = sqlite3.connect(folder.database)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(BatchesUnavailable, match="format is 99"):
        Store(folder)


def test_a_broken_database_is_refused(folder: DataFolder) -> None:
    folder.database.write_bytes(b"this is not a database" * 100)
    with pytest.raises(BatchesUnavailable, match="not a database"):
        Store(folder)


def test_an_owner_sees_only_its_own(folder: DataFolder, store: Store) -> None:
    batch = batch_of(folder, store, owner="a")
    for operation in (
        lambda: store.files.get("b", batch.input_file),
        lambda: store.batch("b", batch.id, "openai"),
        lambda: store.batch("a", batch.id, "anthropic"),
        lambda: store.cancel("b", batch.id, "openai", 1),
        lambda: store.delete_file("b", batch.input_file),
    ):
        with pytest.raises(NotFound):
            operation()
    assert store.files.page("b", after=None, limit=10) == ([], False)
    assert store.batches("b", "openai", after=None, limit=10) == ([], False)
    assert store.files.used_by("a") == (1, 10)
    assert store.files.used_by("b") == (0, 0)


def test_pages(folder: DataFolder, store: Store) -> None:
    ids = [f"file-{number}" for number in range(5)]
    for id in ids:
        folder.upload(id).touch()
        store.files.add(StoredFile(id, "", "x", "batch", 0, 1))
    found, after = [], None
    while True:
        page, more = store.files.page("", after=after, limit=2)
        found += [file.id for file in page]
        after = page[-1].id
        if not more:
            break
    assert found == ids[::-1]
    assert [file.id for file in store.files.page("", after="file-2", limit=9, ascending=True)[0]] == ids[3:]
    with pytest.raises(InvalidRequest) as raised:
        store.files.page("", after="file-none", limit=1)
    assert raised.value.param == "after"


def test_the_input_of_a_running_batch_stays(folder: DataFolder, store: Store) -> None:
    batch = batch_of(folder, store)
    with pytest.raises(InvalidRequest, match=batch.id):
        store.delete_file("", batch.input_file)
    store.remove_expired_files(10**12)
    assert folder.file(batch.input_file).exists()


def test_repeated_custom_ids_are_named_with_the_first_line(store: Store) -> None:
    store.add_batch(new_batch("batch_x", "file-x"))
    lines = [NewLine(1, "a", 0, 1), NewLine(2, "b", 1, 1), NewLine(3, "a", 2, 1)]
    assert store.add_lines("batch_x", lines) == [(lines[2], 1)]


def test_a_refused_batch_has_no_lines(store: Store) -> None:
    store.add_batch(new_batch("batch_x", "file-x"))
    store.add_lines("batch_x", [NewLine(1, "a", 0, 1)])
    batch = store.refuse("batch_x", [Mistake("invalid_json_line", "no", None, 1)], 3)
    assert (batch.status, batch.failed_at, store.unfinished()) == ("failed", 3, [])
    assert store.waiting("batch_x", limit=1) == []


def test_files_without_an_entry_are_removed(folder: DataFolder, store: Store) -> None:
    """As a crash between a rename and its commit leaves them."""
    batch = batch_of(folder, store)
    store.add_results(batch.id, [result(1)])
    folder.file("file-orphan").write_bytes(b"x")
    folder.upload("file-part").write_bytes(b"x")
    (folder.sorting / "batch_y").mkdir()
    store.close()
    Store(folder)
    assert sorted(folder.file_ids()) == sorted([batch.input_file, batch.output_file])
    assert not list(folder.uploads.iterdir())
    assert not list(folder.sorting.iterdir())


@full
def test_a_million_lines(folder: DataFolder, store: Store) -> None:
    store.add_batch(new_batch("batch_x", "file-x"))
    for start in range(0, 1_000_000, 1000):
        store.add_lines("batch_x", [NewLine(n, f"id-{n}", n, 1) for n in range(start, start + 1000)])
    store.start("batch_x", total=1_000_000, model="m", identity="", now=1)
    assert [line.number for line in store.waiting("batch_x", begin=999_991, limit=5)] == list(range(999_991, 999_996))
    store.add_results("batch_x", [result(500_000)])
    store.close()
    again = Store(folder)
    assert again.batch("", "batch_x", "openai").unanswered == 999_999
