"""Transactions of SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """What is done inside has an effect as a whole or not at all. The connection must not begin transactions itself."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # SQLite ends it by itself if the disk is full
            db.execute("ROLLBACK")
        raise
