"""The database of files and batches: its tables, and transactions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Literal

from paddock.errors import BatchesUnavailable, InvalidRequest
from paddock.storage import transaction

_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE files (
    seq INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, owner TEXT NOT NULL, purpose TEXT NOT NULL,
    size INTEGER NOT NULL, expires_at INTEGER, hidden INTEGER NOT NULL, record BLOB NOT NULL
);
CREATE INDEX files_of_owner ON files (owner, seq);
CREATE TABLE batches (
    seq INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, owner TEXT NOT NULL, dialect TEXT NOT NULL,
    ended INTEGER NOT NULL, record BLOB NOT NULL
);
CREATE INDEX batches_of_owner ON batches (owner, dialect, seq);
CREATE INDEX running_batches ON batches (seq) WHERE ended = 0;
CREATE TABLE lines (
    batch TEXT NOT NULL, number INTEGER NOT NULL, custom_id TEXT NOT NULL, start INTEGER NOT NULL,
    size INTEGER NOT NULL, rank INTEGER NOT NULL, state INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0, end INTEGER, PRIMARY KEY (batch, number)
) WITHOUT ROWID;
CREATE UNIQUE INDEX lines_by_custom_id ON lines (batch, custom_id);
CREATE INDEX waiting_lines ON lines (batch, rank) WHERE state = 0;
"""


class Database:
    """Used by one thread at a time. Raises `sqlite3.Error` if the disk is full."""

    def __init__(self, path: Path) -> None:
        """Raises `BatchesUnavailable` if another version wrote it, and `sqlite3.Error`."""
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._db.execute("PRAGMA journal_mode = WAL")
            # Files are synced before a commit, and a commit that a power failure undoes leaves a file that is too
            # long, which is repaired.
            self._db.execute("PRAGMA synchronous = NORMAL")
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                with self.transaction():
                    for statement in filter(str.strip, _SCHEMA.split(";")):
                        self._db.execute(statement)
                    self._db.execute(f"PRAGMA user_version = {_VERSION}")
            elif version != _VERSION:
                raise BatchesUnavailable(
                    f"{path} was written by another version of Paddock (its format is {version}, this version reads "
                    f"{_VERSION}): use another --data-dir"
                )
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        self._db.close()

    def execute(self, statement: str, values: tuple[Any, ...] | dict[str, Any] = ()) -> sqlite3.Cursor:
        return self._db.execute(statement, values)

    def executemany(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        self._db.executemany(statement, rows)

    def transaction(self) -> AbstractContextManager[None]:
        return transaction(self._db)

    def page(
        self,
        table: Literal["files", "batches"],
        where: str,
        values: dict[str, str | None],
        after: str | None,
        limit: int,
        *,
        ascending: bool,
    ) -> tuple[list[bytes], bool]:
        """Records in the order of their creation, the newest first, and whether there are more."""
        order, beyond = ("ASC", ">") if ascending else ("DESC", "<")
        if after is not None:
            known = self._db.execute(
                f"SELECT seq FROM {table} WHERE id = :after AND {where}",  # noqa: S608 (our own text)
                {**values, "after": after},
            ).fetchone()
            if known is None:
                raise InvalidRequest(f"there is no entry {after!r} to continue after", param="after")
            where += f" AND seq {beyond} {known[0]}"
        rows = self._db.execute(
            f"SELECT record FROM {table} WHERE {where} ORDER BY seq {order} LIMIT :limit",  # noqa: S608
            {**values, "limit": limit + 1},
        ).fetchall()
        return [row[0] for row in rows[:limit]], len(rows) > limit
