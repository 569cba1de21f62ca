"""The audit log: who did what to the server, one JSON object a line, only ever appended to."""

from __future__ import annotations

import os
import queue
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import structlog

from paddock.errors import StartupError

AUDITED: Final = "paddock.audited"
"""Where the scope of a request that changes things for others has a dict for what is to be written down of it."""
_MOST_WAITING = 4096
_LONGEST_DETAIL = 4096
_log = structlog.get_logger(__name__)

Result = Literal["ok", "refused", "failed", "unknown"]


class Record(msgspec.Struct, kw_only=True, omit_defaults=True):
    time: str
    """In UTC, to the millisecond."""
    action: str
    """The method and the path, or the signal."""
    key: str | None = None
    """The name of the key; none where no key was accepted, or the server has none."""
    address: str = ""
    result: Result
    status: int = 0
    """Of the response; 0: there was none."""
    detail: Any = None
    """The body of the request."""
    request_id: str = ""
    lost: int = 0
    """How many records before this one could not be written."""


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def result_of(status: int) -> Result:
    """A request without a response may or may not have done something: its client left."""
    if status == 0:
        return "unknown"
    return "ok" if status < 400 else "refused" if status < 500 else "failed"


def detail_of(body: bytes) -> Any:
    """A body as JSON, or as the beginning of its text where it is none or too long."""
    if not body:
        return None
    if len(body) <= _LONGEST_DETAIL:
        try:
            return msgspec.json.decode(body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            pass
    return body[:_LONGEST_DETAIL].decode("utf-8", "replace")


class AuditLog:
    """Records are handed over without waiting; a thread writes each with one call and has it reach the disk."""

    def __init__(self, path: Path) -> None:
        """Raises `StartupError` where it cannot be written."""
        self._path = path
        try:
            self._file = self._open()
        except OSError as error:
            raise StartupError(f"cannot write the audit log {path}: {error.strerror}") from None
        self._waiting: queue.Queue[Record | None] = queue.Queue(_MOST_WAITING)
        self._lost = 0
        self._thread = threading.Thread(target=self._write_all, name="audit", daemon=True)
        self._thread.start()

    def record(self, record: Record) -> None:
        """Never waits. What finds no place, because the disk is slower than they come, is counted in the next one."""
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self._lost += 1

    def close(self) -> None:
        """Write what is waiting, and no more."""
        self._waiting.put(None)
        self._thread.join()
        os.close(self._file)

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self._path, flags, 0o600)

    def _write_all(self) -> None:
        while (record := self._waiting.get()) is not None:
            lost, self._lost = self._lost, 0
            try:
                self._follow_rotation()
                os.write(self._file, msgspec.json.encode(msgspec.structs.replace(record, lost=lost)) + b"\n")
                os.fsync(self._file)
            except OSError as error:
                self._lost += lost + 1
                _log.error("the audit log cannot be written", file=str(self._path), error=error.strerror)

    def _follow_rotation(self) -> None:
        """Where the file was moved away, as logrotate does, go on with a new one of its name."""
        ours = os.fstat(self._file)
        try:
            there = os.lstat(self._path)
        except FileNotFoundError:
            there = None
        if there is None or (there.st_ino, there.st_dev) != (ours.st_ino, ours.st_dev):
            opened = self._open()
            os.close(self._file)
            self._file = opened
