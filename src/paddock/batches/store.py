"""The state of all files and batches, in SQLite. Every operation is complete or has no effect, whenever a crash comes.

A result is written to its file first and then committed, together with the size of the file. What a crash leaves behind
that size is cut off, and its lines are run again: no line is answered twice, and none is lost.

Used by one thread at a time. Raises `sqlite3.Error` or `OSError` if the disk is full.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterable, Sequence, Set

import msgspec

from paddock.batches import results
from paddock.batches.database import Database
from paddock.batches.file_table import FileTable
from paddock.batches.records import (
    MOST_FAILURES,
    Batch,
    Dialect,
    Ending,
    Line,
    Mistake,
    NewLine,
    Result,
    ResultPart,
    Status,
    StoredFile,
    new_id,
)
from paddock.errors import BatchesUnavailable, InvalidRequest, NotFound, QuotaExceeded
from paddock.receipts import SigningKey
from paddock.storage import DataFolder

_WAITING, _SUCCEEDED, _FAILED = 0, 1, 2
_REMOVED_AT_ONCE = 2000
_batch = msgspec.json.Decoder(Batch)


class Store:
    def __init__(self, folder: DataFolder, key: SigningKey | None = None) -> None:
        """The folder must be locked. `key` signs receipts. Raises `BatchesUnavailable` if the database cannot be
        used.
        """
        self.folder = folder
        self._key = key
        try:
            self._db = Database(folder.database)
            try:
                self.files = FileTable(self._db, folder)
                self._recover()
            except BaseException:
                self._db.close()
                raise
        except (sqlite3.Error, OSError) as error:
            raise BatchesUnavailable(f"cannot use {folder.database}: {error}") from None

    def close(self) -> None:
        self._db.close()

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def delete_file(self, owner: str, id: str) -> None:
        """Raises `NotFound`, or `InvalidRequest` if a running batch uses the file."""
        self.files.get(owner, id)
        for batch in self.unfinished():
            if id == batch.input_file:
                raise InvalidRequest(
                    f"{id} is the input of the batch {batch.id}, which is {batch.status}: cancel it first",
                    param="file_id",
                )
        self.files.remove(id)

    def remove_expired_files(self, now: int) -> None:
        used = {batch.input_file for batch in self.unfinished()}
        for id in self.files.expired(now):
            if id not in used:
                self.files.remove(id)

    # ── batches ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def add_batch(self, batch: Batch, most_waiting: int | None = None) -> None:
        """Raises `QuotaExceeded` if the owner has more than `most_waiting` lines then."""
        if most_waiting is not None:
            self.check_quota(batch.owner, batch.total, most_waiting)
        with self._db.transaction():
            self._db.execute(
                "INSERT INTO batches (id, owner, dialect, ended, record) VALUES (?, ?, ?, ?, ?)",
                (batch.id, batch.owner, batch.dialect, batch.has_ended, msgspec.json.encode(batch)),
            )

    def batch(self, owner: str, id: str, dialect: Dialect) -> Batch:
        """Raises `NotFound`."""
        found = self._db.execute(
            "SELECT record FROM batches WHERE id = ? AND owner = ? AND dialect = ?", (id, owner, dialect)
        ).fetchone()
        if found is None:
            raise NotFound(f"there is no batch {id!r}", param="batch_id")
        return _batch.decode(found[0])

    def batches(
        self, owner: str, dialect: Dialect, *, after: str | None, limit: int, ascending: bool = False
    ) -> tuple[list[Batch], bool]:
        """A page of the owner's batches, the newest first, and whether there are more."""
        where = "owner = :owner AND dialect = :dialect"
        rows, more = self._db.page(
            "batches", where, {"owner": owner, "dialect": dialect}, after, limit, ascending=ascending
        )
        return [_batch.decode(row) for row in rows], more

    def unfinished(self) -> list[Batch]:
        """The batches of all owners that have not ended, the oldest first."""
        rows = self._db.execute("SELECT record FROM batches WHERE ended = 0 ORDER BY seq")
        return [_batch.decode(row[0]) for row in rows.fetchall()]

    def check_quota(self, owner: str, more: int, limit: int) -> None:
        """Raises `QuotaExceeded` if the owner's lines that are not answered, and so many more, exceed the limit."""
        waiting = sum(batch.unanswered for batch in self.unfinished() if batch.owner == owner)
        if waiting + more > limit:
            raise QuotaExceeded(
                f"the batch has {more} requests, and {waiting} of this key wait already; the limit is {limit} "
                "(batches.max_waiting_per_key)"
            )

    def cancel(self, owner: str, id: str, dialect: Dialect, now: int) -> Batch:
        """Raises `NotFound`. A batch that has ended, or is ending, is not changed."""
        batch = self.batch(owner, id, dialect)
        if batch.status not in ("validating", "in_progress"):
            return batch
        return self._change(batch, status="cancelling", ending="cancelled", cancelling_at=now)

    def delete_batch(self, owner: str, id: str, dialect: Dialect) -> None:
        """Delete a batch that has ended, with the files that only it has. Raises `NotFound` or `InvalidRequest`."""
        batch = self.batch(owner, id, dialect)
        if not batch.has_ended:
            raise InvalidRequest(f"the batch {id} is {batch.status}: cancel it first", param="batch_id")
        with self._db.transaction():
            self._db.execute("DELETE FROM batches WHERE id = ?", (id,))
        for file in (batch.input_file, batch.output_file, batch.error_file):
            self.files.remove(file)

    # ── validation ───────────────────────────────────────────────────────────────────────────────────────────────────

    def add_lines(self, id: str, lines: Sequence[NewLine]) -> list[tuple[NewLine, int]]:
        """Add valid lines. Returns those whose custom_id is not new, each with the line that has it. A line that an
        earlier validation of the same file has added stays.
        """
        repeated: list[tuple[NewLine, int]] = []
        with self._db.transaction():
            for line in lines:
                added = self._db.execute(
                    "INSERT OR IGNORE INTO lines (batch, number, custom_id, start, size, rank) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    (id, line.number, line.custom_id, line.start, line.size, line.number),
                )
                if not added.rowcount:
                    where = (id, line.custom_id)
                    row = self._db.execute("SELECT number FROM lines WHERE batch = ? AND custom_id = ?", where)
                    first = row.fetchone()[0]
                    if first != line.number:
                        repeated.append((line, first))
        return repeated

    def set_ranks(self, id: str, ranks: Iterable[tuple[int, int]]) -> None:
        """`ranks` are numbers of lines, each with its place in the order."""
        with self._db.transaction():
            self._db.executemany(
                "UPDATE lines SET rank = ? WHERE batch = ? AND number = ?",
                ((rank, id, number) for number, rank in ranks),
            )

    def start(self, id: str, *, total: int, model: str, identity: str, now: int) -> Batch:
        """All lines are valid. A batch that was cancelled meanwhile stays so."""
        batch = self._current(id)
        if batch.status != "validating":
            return self._change(batch, total=total)
        return self._change(
            batch, status="in_progress", in_progress_at=now, total=total, model=model, identity=identity
        )

    def refuse(self, id: str, mistakes: Sequence[Mistake], now: int) -> Batch:
        """The input is not valid: nothing is run. A batch whose requests were accepted one by one has a result for each
        of them, so its lines must still be written.
        """
        batch = self._current(id)
        if batch.status != "validating":
            return batch
        if batch.total:
            return self.begin_end(id, "failed", now, mistakes)
        batch = self._change(batch, status="failed", failed_at=now, mistakes=tuple(mistakes))
        self.remove_lines(id)
        return batch

    # ── results ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def waiting(self, id: str, *, begin: int = 0, end: int | None = None, limit: int) -> list[Line]:
        """The first unanswered lines from rank `begin` on, and before `end`."""
        rows = self._db.execute(
            "SELECT number, rank, custom_id, start, size, attempts FROM lines "
            "WHERE batch = ? AND state = 0 AND rank BETWEEN ? AND ? ORDER BY rank LIMIT ?",
            (id, begin, sys.maxsize if end is None else end - 1, limit),
        )
        return [Line(*row) for row in rows.fetchall()]

    def read_line(self, batch: Batch, line: Line) -> bytes:
        return results.read_piece(self.folder.file(batch.input_file), line.start, line.size)

    def add_attempt(self, id: str, number: int) -> None:
        with self._db.transaction():
            self._db.execute("UPDATE lines SET attempts = attempts + 1 WHERE batch = ? AND number = ?", (id, number))

    def add_results(self, id: str, ended: Sequence[Result]) -> Batch:
        """Append to the result files, and commit. A line that has a result already is skipped."""
        batch = self._current(id)
        numbers = self._unanswered(id, {result.number for result in ended})
        new = list({result.number: result for result in ended if result.number in numbers}.values())
        if not new:
            return batch
        successes, rest = [one for one in new if one.is_success], [one for one in new if not one.is_success]
        output, outputs = self._append(batch.dialect, batch.output_file, batch.output, successes)
        try:
            errors, failures = self._append(batch.dialect, batch.error_file, batch.errors, rest)
            with self._db.transaction():
                for state, ends in ((_SUCCEEDED, outputs), (_FAILED, failures)):
                    self._db.executemany(
                        "UPDATE lines SET state = ?, end = ? WHERE batch = ? AND number = ?",
                        ((state, end, id, number) for number, end in ends),
                    )
                usage = sum((result.usage for result in new), batch.usage)
                not_run = batch.not_run + sum(not result.was_run for result in new)
                first = [*batch.first_failures, *(results.failure_of(one) for one in rest if one.was_run)]
                changes = {"usage": usage, "not_run": not_run, "first_failures": tuple(first[:MOST_FAILURES])}
                return self._write(batch, output=output, errors=errors, **changes)
        except BaseException:
            self._cut(batch)
            raise

    def _append(
        self, dialect: Dialect, file: str, part: ResultPart, ended: Sequence[Result]
    ) -> tuple[ResultPart, list[tuple[int, int]]]:
        """The new complete part, and for each line where its result ends."""
        if not ended:
            return part, []
        lines: list[bytes] = []
        ends: list[tuple[int, int]] = []
        previous, end = part.receipt, part.size
        for result in ended:
            line, previous = results.output_line(
                id=new_id("batch_req_"),
                dialect=dialect,
                custom_id=result.custom_id,
                reply=result.reply,
                status=result.status,
                request_id=result.request_id,
                error=result.error,
                previous=previous,
                key=self._key,
            )
            lines.append(line)
            end += len(lines[-1])
            ends.append((result.number, end))
        return results.append(self.folder.file(file), part, lines, previous), ends

    def _unanswered(self, id: str, numbers: Set[int]) -> set[int]:
        query = "SELECT 1 FROM lines WHERE batch = ? AND number = ? AND state = 0"
        return {number for number in numbers if self._db.execute(query, (id, number)).fetchone() is not None}

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin_end(self, id: str, ending: Ending, now: int, mistakes: Sequence[Mistake] = ()) -> Batch:
        """No further line is run."""
        batch = self._current(id)
        if batch.has_ended or batch.status == "finalizing":
            return batch
        if batch.status == "cancelling":
            ending = "cancelled"
        status: Status = "cancelling" if ending == "cancelled" else "finalizing"
        return self._change(batch, status=status, ending=ending, finalizing_at=now, mistakes=tuple(mistakes))

    def end(self, id: str, now: int) -> Batch:
        """The result files are complete. Makes them visible."""
        batch = self._current(id)
        if batch.has_ended:
            return batch
        assert batch.ending is not None, "begin_end sets it"
        expires_at = None if batch.keep_results is None else now + batch.keep_results
        with self._db.transaction():
            for file, part, what in (
                (batch.output_file, batch.output, "output"),
                (batch.error_file, batch.errors, "error"),
            ):
                if part.lines:
                    self.files.insert(
                        StoredFile(
                            file,
                            batch.owner,
                            f"{batch.id}_{what}.jsonl",
                            "batch_output",
                            part.size,
                            now,
                            expires_at,
                            batch.dialect != "openai",
                        )
                    )
            batch = self._write(batch, status=batch.ending, **{f"{batch.ending}_at": now})
        self.remove_lines(id)
        return batch

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _recover(self) -> None:
        """Remove what a crash left behind."""
        self.folder.clear_unfinished()
        unfinished = self.unfinished()
        for batch in unfinished:
            if batch.status != "validating":
                self._repair(batch)
        rows = self._db.execute("SELECT DISTINCT batch FROM lines").fetchall()
        for id in {row[0] for row in rows} - {batch.id for batch in unfinished}:
            self.remove_lines(id)
        known = self.files.ids()
        known |= {file for batch in unfinished for file in (batch.output_file, batch.error_file)}
        for id in set(self.folder.file_ids()) - known:
            self.folder.file(id).unlink()

    def _repair(self, batch: Batch) -> None:
        """Cut off what was not committed. If a committed part is missing, its lines are run again."""
        parts: dict[str, ResultPart] = {}
        with self._db.transaction():
            for name, file, part, state in (
                ("output", batch.output_file, batch.output, _SUCCEEDED),
                ("errors", batch.error_file, batch.errors, _FAILED),
            ):
                size = results.size_of(self.folder.file(file))
                parts[name] = part if size >= part.size else self._shortened(batch.id, file, state, size)
            # Lines that have lost their results may fail again, or not.
            kept = batch.first_failures if parts["errors"] == batch.errors else ()
            self._write(batch, **parts, first_failures=kept)
        self._cut(self._current(batch.id))

    def _shortened(self, id: str, file: str, state: int, size: int) -> ResultPart:
        """The complete part of a file that has lost its end. The lost lines wait again."""
        self._db.execute(
            "UPDATE lines SET state = 0, end = NULL WHERE batch = ? AND state = ? AND end > ?", (id, state, size)
        )
        query = "SELECT COUNT(*), MAX(end) FROM lines WHERE batch = ? AND state = ?"
        count, end = self._db.execute(query, (id, state)).fetchone()
        return ResultPart(end, count, results.last_receipt(self.folder.file(file), end)) if count else ResultPart()

    def _cut(self, batch: Batch) -> None:
        results.cut(self.folder.file(batch.output_file), batch.output.size)
        results.cut(self.folder.file(batch.error_file), batch.errors.size)

    def remove_lines(self, id: str) -> None:
        """In short transactions: a batch may have millions of lines."""
        removed = _REMOVED_AT_ONCE
        while removed == _REMOVED_AT_ONCE:
            with self._db.transaction():
                query = "SELECT number FROM lines WHERE batch = ? LIMIT ?"
                numbers = self._db.execute(query, (id, _REMOVED_AT_ONCE)).fetchall()
                self._db.executemany(
                    "DELETE FROM lines WHERE batch = ? AND number = ?", ((id, row[0]) for row in numbers)
                )
                removed = len(numbers)

    def _current(self, id: str) -> Batch:
        row = self._db.execute("SELECT record FROM batches WHERE id = ?", (id,)).fetchone()
        assert row is not None, "a batch is deleted only after its end"
        return _batch.decode(row[0])

    def _change(self, batch: Batch, **changes: object) -> Batch:
        with self._db.transaction():
            return self._write(batch, **changes)

    def _write(self, batch: Batch, **changes: object) -> Batch:
        batch = msgspec.structs.replace(batch, **changes)
        record = msgspec.json.encode(batch)
        self._db.execute("UPDATE batches SET ended = ?, record = ? WHERE id = ?", (batch.has_ended, record, batch.id))
        return batch
