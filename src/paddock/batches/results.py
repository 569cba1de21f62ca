"""Result files: lines are appended, and a file never keeps more than what was committed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from paddock.batches.records import ResultPart

_encode = msgspec.json.encode


class _Response(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _Error(msgspec.Struct):
    code: str
    message: str


class _OutputLine(msgspec.Struct):
    id: str
    custom_id: str
    response: _Response | None
    error: _Error | None


def output_line(
    *,
    id: str,
    custom_id: str,
    reply: bytes | None,
    status: int,
    request_id: str,
    error: tuple[str, str] | None,
    previous: str,
) -> bytes:
    """One line of a result file. The endpoint's reply is copied unchanged.

    `previous` is the SHA-256 of the line before it in the same file, empty for the first line. The chain of receipts
    goes in here.
    """
    response = None if reply is None else _Response(status, request_id, msgspec.Raw(reply))
    failure = None if error is None else _Error(*error)
    return _encode(_OutputLine(id, custom_id, response, failure)) + b"\n"


def digest_of(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def append(path: Path, part: ResultPart, lines: Sequence[bytes]) -> ResultPart:
    """Write the lines behind the complete part, and sync them to disk. Raises `OSError`; then the file ends with the
    complete part again, or `repair` will see to it.
    """
    data = b"".join(lines)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            _write_all(descriptor, data, part.size)
            os.fdatasync(descriptor)
        except OSError:
            os.ftruncate(descriptor, part.size)
            raise
    finally:
        os.close(descriptor)
    return ResultPart(part.size + len(data), part.lines + len(lines), digest_of(lines[-1]))


def cut(path: Path, size: int) -> None:
    """Shorten the file to so many bytes. It may be missing if that is 0."""
    if path.exists():
        os.truncate(path, size)


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def read_piece(path: Path, start: int, size: int) -> bytes:
    """Raises `EOFError` if the file is shorter."""
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(size)
    if len(data) < size:
        raise EOFError(f"{path} ends at byte {start + len(data)}, before {start + size}")
    return data


def _write_all(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written
