"""Parses the header of a GGUF file and checks that the file is complete. Reads no weights.

The `gguf` package is not used: it imports numpy and decodes every string of a 128k vocabulary. This parser reads
scalars and skips the rest.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import Any, BinaryIO

MAGIC = b"GGUF"
_MAX_DIMENSIONS = 4
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# A numeric array up to this length is per layer; a longer one is per vocabulary entry.
_MOST_LAYERS = 1024
_READ_AT_ONCE = 1 << 20
# Headers reach about 30 MB with the largest vocabularies. A corrupt length must not make us read the whole file.
_MOST_HEADER = 256 << 20
# Counts are bounded too: the largest models have a few thousand tensors and keys, and about a million strings.
_MOST_TENSORS = 1 << 15
_MOST_KEYS = 1 << 16
_MOST_STRINGS = 1 << 22
_ENDS_ABRUPTLY = "its header is truncated: it needs {1} bytes at offset {0}, the file has {2}"
_LENGTH = struct.Struct("<Q")

# ggml type → (weights per block, bytes per block). A type missing here is not checked for truncation.
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip


class BrokenGGUF(ValueError):
    """The file is not a loadable GGUF model; the message says why."""


@dataclass(frozen=True, slots=True)
class Tensor:
    name: str
    shape: tuple[int, ...]
    """The first dimension is the length of a row."""
    size: int
    """Bytes; 0 for an unknown type."""


@dataclass(frozen=True, slots=True)
class Header:
    version: int
    metadata: dict[str, Any]
    """Scalars and strings; arrays are skipped."""
    lengths: dict[str, int]
    """The length of each array."""
    tensor_count: int
    parameters: int
    """The weights of all tensors."""
    classifies: bool
    """It has a classification head, which reranking needs."""
    arrays: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Numeric arrays, one value per layer."""
    tensors: tuple[Tensor, ...] = ()


def parse_header(file: BinaryIO, size: int) -> Header:
    """Parse the header of a file of `size` bytes. Raises `BrokenGGUF`."""
    if size < len(MAGIC) + 20:
        raise BrokenGGUF(f"it is too short to be a GGUF file ({size} bytes)")
    cursor = _Cursor(file, size)
    if (magic := cursor.take(len(MAGIC))) != MAGIC:
        raise BrokenGGUF(f"it starts with {magic!r}, not with 'GGUF'")
    version = cursor.scalar("I")
    if version not in (2, 3):
        raise BrokenGGUF(f"its GGUF version is {version}; versions 2 and 3 are supported")
    tensor_count, key_count = cursor.scalar("Q"), cursor.scalar("Q")
    _check_count(tensor_count, _MOST_TENSORS, "tensors")
    _check_count(key_count, _MOST_KEYS, "keys")
    metadata: dict[str, Any] = {}
    lengths: dict[str, int] = {}
    arrays: dict[str, tuple[float, ...]] = {}
    for _ in range(key_count):
        key = cursor.string()
        kind = cursor.scalar("I")
        if kind == _ARRAY:
            lengths[key], values = cursor.array()
            if values is not None:
                arrays[key] = values
        else:
            metadata[key] = cursor.value(kind)
    tensors, parameters = _check_tensors(cursor, tensor_count, metadata.get("general.alignment", 32))
    classifies = any(tensor.name.startswith("cls.") for tensor in tensors)
    return Header(version, metadata, lengths, tensor_count, parameters, classifies, arrays, tensors)


def _check_count(count: int, most: int, what: str) -> None:
    if count > most:
        raise BrokenGGUF(f"its header lists {count} {what}; the limit is {most}")


def _check_tensors(cursor: _Cursor, count: int, alignment: Any) -> tuple[tuple[Tensor, ...], int]:
    """The tensors and their number of weights. Checks that the file holds all of them."""
    if not isinstance(alignment, int) or alignment <= 0:
        raise BrokenGGUF(f"its alignment is {alignment!r}")
    needed = parameters = 0
    tensors: list[Tensor] = []
    for _ in range(count):
        name = cursor.string()
        dimensions = cursor.scalar("I")
        if dimensions > _MAX_DIMENSIONS:
            raise BrokenGGUF(f"its tensor {name!r} has {dimensions} dimensions")
        shape = tuple(cursor.scalar("Q") for _ in range(dimensions))
        weights = math.prod(shape)
        parameters += weights
        size = stored_size(cursor.scalar("I"), weights)
        needed = max(needed, cursor.scalar("Q") + size)
        tensors.append(Tensor(name, shape, size))
    start = -(-cursor.at // alignment) * alignment
    if start + needed > cursor.size:
        raise BrokenGGUF(f"it is truncated: its tensors need {start + needed} bytes, the file has {cursor.size}")
    return tuple(tensors), parameters


def stored_size(kind: int, weights: int) -> int:
    """Bytes of this many weights of a ggml type; 0 for an unknown type."""
    block, bytes_per_block = _BLOCKS.get(kind, (1, 0))
    return weights // block * bytes_per_block


class _Cursor:
    """Reads forward and never past the end of the file.

    The file is not memory-mapped: if another process truncates it, this one would die of SIGBUS.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._data = bytearray()
        self.size = size
        self.at = 0
        self._strings = 0
        """How many were skipped."""

    def take(self, size: int) -> bytes:
        start = self._advance(size)
        return bytes(self._data[start : start + size])

    def scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        return self.take(self.scalar("Q")).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        return self.string() if kind == _STRING else self.scalar(_code(kind))

    def array(self) -> tuple[int, tuple[float, ...] | None]:
        """Its length, and its items if it is numeric and short."""
        kind, count = self.scalar("I"), self.scalar("Q")
        if kind == _STRING:
            self._skip_strings(count)
            return count, None
        code = _code(kind)
        size = struct.calcsize("<" + code) * count
        if count > _MOST_LAYERS:
            self._advance(size)
            return count, None
        return count, struct.unpack(f"<{count}{code}", self.take(size))

    def _skip_strings(self, count: int) -> None:
        """Most of a header is strings, so this loop avoids calls."""
        self._strings += count
        _check_count(self._strings, _MOST_STRINGS, "strings")
        at, end, unpack, data = self.at, len(self._data) - _LENGTH.size, _LENGTH.unpack_from, self._data
        for _ in range(count):
            if at > end:
                self.at = at
                self._advance(_LENGTH.size)
                end = len(data) - _LENGTH.size
            at += _LENGTH.size + unpack(data, at)[0]
        self.at = at
        self._advance(0)

    def _advance(self, size: int) -> int:
        start, end = self.at, self.at + size
        if end > self.size:
            raise BrokenGGUF(_ENDS_ABRUPTLY.format(start, size, self.size))
        if end > _MOST_HEADER:
            raise BrokenGGUF(f"its header is larger than {_MOST_HEADER >> 20} MiB")
        while len(self._data) < end:
            more = self._file.read(max(_READ_AT_ONCE, end - len(self._data)))
            if not more:
                raise BrokenGGUF(_ENDS_ABRUPTLY.format(start, size, len(self._data)))
            self._data += more
        self.at = end
        return start


def _code(kind: int) -> str:
    try:
        return _SCALARS[kind]
    except KeyError:
        raise BrokenGGUF(f"its header holds a value of unknown type {kind}") from None
