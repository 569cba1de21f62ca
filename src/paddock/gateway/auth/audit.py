"""The audit log of administrative requests: one JSON object per line, append-only."""

from __future__ import annotations

import os
import queue
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import structlog
from starlette.types import Scope

from paddock.errors import StartupError
from paddock.gateway.http.request_context import REQUEST_ID
from paddock.gateway.http.scope import AUDITED, KEY_NAME

_MOST_WAITING = 4096
_LONGEST_DETAIL = 4096
_LONGEST_PATH = 200
_log = structlog.get_logger(__name__)

Result = Literal["ok", "refused", "failed", "unknown"]


class Record(msgspec.Struct, kw_only=True, omit_defaults=True):
    time: str
    """UTC, with milliseconds."""
    action: str
    """The method and the path, or the signal."""
    key: str | None = None
    """The name of the key; null if no key was accepted, or if the server has no keys."""
    address: str = ""
    result: Result
    status: int = 0
    """Of the response; 0: there was no response."""
    detail: Any = None
    """The body of the request."""
    request_id: str = ""
    lost: int = 0
    """How many records before this one could not be written."""


def result_of(status: int) -> Result:
    """Without a response the result is unknown: the client disconnected."""
    if status == 0:
        return "unknown"
    return "ok" if status < 400 else "refused" if status < 500 else "failed"


def detail_of(body: bytes) -> Any:
    """A body as JSON, or the start of its text if it is not JSON or too long."""
    if not body:
        return None
    if len(body) <= _LONGEST_DETAIL:
        try:
            return msgspec.json.decode(body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            pass
    return body[:_LONGEST_DETAIL].decode("utf-8", "replace")


class AuditLog:
    """Records are queued without blocking. A thread writes each with one call and syncs it to disk."""

    def __init__(self, path: Path) -> None:
        """Raises `StartupError` if the file cannot be written."""
        self._path = path
        try:
            self._file = self._open()
        except OSError as error:
            raise StartupError(f"cannot write the audit log {path}: {error.strerror}") from None
        self._waiting: queue.Queue[Record | None] = queue.Queue(_MOST_WAITING)
        self._lost = 0
        self._thread = threading.Thread(target=self._write_all, name="audit", daemon=True)
        self._thread.start()

    def record_request(self, scope: Scope, status: int) -> None:
        """Record a request that has ended, if it is one that is audited."""
        if AUDITED not in scope:
            return
        client = scope.get("client")
        self.record(
            f"{scope['method']} {scope['path'][:_LONGEST_PATH]}",
            status,
            key=scope.get(KEY_NAME) or None,
            address=client[0] if client else "",
            detail=detail_of(scope[AUDITED].get("body", b"")),
            request_id=REQUEST_ID.get(),
        )

    def record(self, action: str, status: int, **about: Any) -> None:
        """Never blocks. If the queue is full because the disk is slow, the next record counts the lost ones."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        try:
            self._waiting.put_nowait(Record(time=time, action=action, result=result_of(status), status=status, **about))
        except queue.Full:
            self._lost += 1

    def close(self) -> None:
        """Write the queued records and stop."""
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
        """Open a new file if the old one was moved away, as logrotate does."""
        try:
            is_same = os.path.samestat(os.fstat(self._file), os.lstat(self._path))
        except FileNotFoundError:
            is_same = False
        if not is_same:
            opened = self._open()
            os.close(self._file)
            self._file = opened
