"""A disk that stops at any operation. What was done before remains; what the process still tries has no effect."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


class Crash(BaseException):
    """The process was killed."""


class Disk:
    """Counts the operations, and crashes at the one that was asked for. A write is then done in part."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.dead = False
        self.full = False

    def operation(self) -> None:
        if self.dead:
            raise Crash
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.dead = True
                raise Crash

    @contextmanager
    def used(self) -> Iterator[None]:
        """Every store that is opened in this context uses this disk."""
        disk, connect = self, sqlite3.connect
        pwrite = os.pwrite

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
                if not sql.startswith("SELECT"):
                    disk.operation()
                if disk.full and sql == "COMMIT":
                    raise sqlite3.OperationalError("database or disk is full")
                return super().execute(sql, *args)

        def write(descriptor: int, data: Any, at: int) -> int:
            if disk.full:
                pwrite(descriptor, data[: len(data) // 2], at)
                raise OSError(28, "No space left on device")
            try:
                disk.operation()
            except Crash:
                pwrite(descriptor, data[: len(data) // 2], at)
                raise
            return pwrite(descriptor, data, at)

        def guarded(call: Callable[..., Any]) -> Callable[..., Any]:
            def guard(*args: Any) -> Any:
                disk.operation()
                return call(*args)

            return guard

        with (
            patch("sqlite3.connect", lambda *args, **more: connect(*args, factory=Connection, **more)),
            patch("os.pwrite", write),
            patch("os.fdatasync", guarded(lambda _: None)),
            patch("os.ftruncate", guarded(os.ftruncate)),
            patch("os.truncate", guarded(os.truncate)),
        ):
            yield
