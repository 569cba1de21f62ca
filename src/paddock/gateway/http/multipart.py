"""`multipart/form-data`, parsed as it arrives (RFC 7578). Pure: bytes in, events out; nothing is collected."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from paddock.errors import InvalidRequest

_MOST_HEADER_BYTES: Final = 16 * 1024
_BOUNDARY = re.compile(r'multipart/form-data\s*;.*?\bboundary=(?:"([^"]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)
_PARAMETER = re.compile(r';\s*([a-z*]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PartBegin:
    name: str
    filename: str | None


@dataclass(frozen=True, slots=True)
class PartData:
    data: bytes


@dataclass(frozen=True, slots=True)
class PartEnd:
    pass


Event = PartBegin | PartData | PartEnd


def boundary_of(content_type: str, example: str = "-F purpose=batch -F file=@FILE") -> bytes:
    """Raises `InvalidRequest` if the body is not a form. `example` shows how curl sends one."""
    match = _BOUNDARY.match(content_type.strip())
    if match is None:
        raise InvalidRequest(
            f"send the file as multipart/form-data with a boundary: curl {example}",
            param="Content-Type",
        )
    return (match[1] or match[2]).encode("latin-1")


class MultipartParser:
    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._buffer = bytearray(b"\r\n")  # the first delimiter has no line before it
        self._state = "preamble"

    @property
    def is_complete(self) -> bool:
        """Whether the last delimiter has been read. What follows it is ignored."""
        return self._state == "epilogue"

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events of the next bytes. Raises `InvalidRequest` for a body that is not a form."""
        self._buffer += data
        while True:
            match self._state:
                case "preamble" | "data":
                    event, is_waiting = self._until_delimiter()
                    if event is not None:
                        yield event
                    if is_waiting:
                        return
                    if self._state == "data":
                        yield PartEnd()
                    self._state = "delimiter"
                case "delimiter":
                    if len(self._buffer) < 2:
                        return
                    if self._buffer.startswith(b"--"):
                        self._state = "epilogue"
                        continue
                    end = self._buffer.find(b"\r\n")
                    if end < 0 and len(self._buffer) < 256:
                        return
                    if end < 0 or self._buffer[:end].strip(b" \t"):
                        raise InvalidRequest("the form is not valid: a boundary is followed by other characters")
                    del self._buffer[:end]
                    self._state = "headers"
                case "headers":
                    if self._buffer.startswith(b"\r\n\r\n"):
                        end = 0
                    elif (end := self._buffer.find(b"\r\n\r\n")) < 0:
                        if len(self._buffer) > _MOST_HEADER_BYTES:
                            raise InvalidRequest(
                                f"a part of the form has more than {_MOST_HEADER_BYTES} bytes of headers"
                            )
                        return
                    headers = bytes(self._buffer[:end])
                    del self._buffer[: end + 4]
                    yield _begin(headers)
                    self._state = "data"
                case _:
                    self._buffer.clear()
                    return

    def _until_delimiter(self) -> tuple[PartData | None, bool]:
        """Data up to the delimiter, which is removed; and whether the delimiter is still to come."""
        at = self._buffer.find(self._delimiter)
        if at >= 0:
            data, rest = bytes(self._buffer[:at]), at + len(self._delimiter)
            del self._buffer[:rest]
        else:
            # The end of the buffer may be the beginning of a delimiter.
            keep = len(self._delimiter) - 1
            size = max(0, len(self._buffer) - keep)
            data = bytes(self._buffer[:size])
            del self._buffer[:size]
        event = PartData(data) if data and self._state == "data" else None
        return event, at < 0


def _begin(headers: bytes) -> PartBegin:
    for line in headers.decode("utf-8", "replace").split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-disposition":
            found = {
                match[1].lower(): _unquoted(match[2]) if match[2] is not None else match[3]
                for match in _PARAMETER.finditer(value)
            }
            if "name" in found:
                return PartBegin(found["name"], found.get("filename"))
    raise InvalidRequest("a part of the form has no name")


def _unquoted(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value).replace("%22", '"')
