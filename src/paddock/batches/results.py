"""Result files: lines are appended, and a file never keeps more than what was committed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from paddock.batches.records import Dialect, Failure, Result, ResultPart
from paddock.receipts import SigningKey, chain_line, parse, receipt_hash, reply_of

_encode = msgspec.json.encode
_LONGEST_MESSAGE = 300
"""Characters of a failure: the record of a batch is written with every result."""
_HAS_RECEIPT = b'"receipt":{'


class _Response(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _Error(msgspec.Struct):
    code: str
    message: str


class _Problem(msgspec.Struct):
    message: str = ""
    type: str = "error"
    code: str | None = None


class _ErrorReply(msgspec.Struct):
    """An error in the words of any dialect."""

    error: _Problem


class _OutputLine(msgspec.Struct):
    id: str
    custom_id: str
    response: _Response | None
    error: _Error | None


def message_line(custom_id: str, message: Any) -> dict[str, Any]:
    """A message as the results of Anthropic's API show it."""
    return {"custom_id": custom_id, "result": {"type": "succeeded", "message": message}}


def output_line(
    *,
    id: str,
    dialect: Dialect,
    custom_id: str,
    reply: bytes | None,
    status: int,
    request_id: str,
    error: tuple[str, str] | None,
    previous: str,
    key: SigningKey | None,
) -> tuple[bytes, str]:
    """One line of a result file, and the hash of its receipt. The endpoint's reply is copied unchanged.

    Only a receipt in the reply is completed: it refers to the receipt before it in the same file, whose hash is
    `previous` (empty: it is the first), covers the line as the client reads it, and is signed again. For a line without
    one the hash is `previous`.
    """

    def written(reply: bytes | None) -> bytes:
        response = None if reply is None else _Response(status, request_id, msgspec.Raw(reply))
        failure = None if error is None else _Error(*error)
        return _encode(_OutputLine(id, custom_id, response, failure)) + b"\n"

    line = written(reply)
    if reply is None or _HAS_RECEIPT not in reply:
        return line, previous
    try:
        shown = parse(line) if dialect == "openai" else message_line(custom_id, parse(reply))
        chained, hash = chain_line(shown, previous or None, key)
    except ValueError:  # the words are somewhere else in the reply
        return line, previous
    return written(_encode(reply_of(chained))), hash


def failure_of(result: Result) -> Failure:
    """Of a line that failed."""
    if result.error is not None:
        code, message = result.error
    else:
        try:
            problem = msgspec.json.decode(result.reply or b"", type=_ErrorReply).error
        except msgspec.MsgspecError:
            problem = _Problem()
        code, message = problem.code or problem.type, problem.message
    return Failure(result.custom_id, code, message[:_LONGEST_MESSAGE], result.status)


def last_receipt(path: Path, size: int) -> str:
    """The hash of the last receipt in so many bytes of the file; empty: there is none."""
    last = ""
    with path.open("rb") as file:
        while file.tell() < size and (line := file.readline()):
            if _HAS_RECEIPT in line:
                receipt = (parse(line).get("response") or {}).get("body", {}).get("receipt")
                last = receipt_hash(receipt) if isinstance(receipt, dict) else last
    return last


def append(path: Path, part: ResultPart, lines: Sequence[bytes], last: str) -> ResultPart:
    """Write the lines behind the complete part, and sync them to disk. Raises `OSError`; then the file ends with the
    complete part again, or the next start will see to it. `last` is the hash of the last receipt.
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
    return ResultPart(part.size + len(data), part.lines + len(lines), last)


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
