"""The header of a GGUF file, read without loading weights: is it whole, and what does it say of itself?

Written here rather than taken from the `gguf` package, which brings numpy into the gateway and builds every string of
a 128k vocabulary as an array; this reads the scalars and steps over the rest.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAGIC = b"GGUF"
_MAX_DIMENSIONS = 4
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

# ggml type → (weights per block, bytes per block). A type missing here is not checked for truncation.
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip


class BrokenGGUF(ValueError):
    """The file is not a GGUF model that could be loaded; the message says why."""


@dataclass(frozen=True, slots=True)
class Header:
    version: int
    metadata: dict[str, Any]
    """Scalars and strings; arrays are stepped over."""
    lengths: dict[str, int]
    """How many items each of those arrays has."""
    tensor_count: int
    parameters: int
    """The weights of all tensors."""
    classifies: bool
    """It has a head that judges whole inputs, as models that rank have."""


def read_header(path: Path) -> Header:
    """Read and check a file's header. Raises `BrokenGGUF`, or `OSError` where the file cannot be read at all."""
    size = path.stat().st_size
    if size < len(MAGIC) + 20:
        raise BrokenGGUF(f"it is too short to be a GGUF file ({size} bytes)")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return parse_header(data, size)


def parse_header(data: bytes | mmap.mmap, size: int) -> Header:
    if data[:4] != MAGIC:
        raise BrokenGGUF(f"it does not start with 'GGUF' but with {bytes(data[:4])!r}")
    cursor = _Cursor(data, size)
    version = cursor.scalar("I")
    if version not in (2, 3):
        raise BrokenGGUF(f"its GGUF version is {version}; 2 and 3 are known")
    tensor_count, key_count = cursor.scalar("Q"), cursor.scalar("Q")
    metadata: dict[str, Any] = {}
    lengths: dict[str, int] = {}
    for _ in range(key_count):
        key = cursor.string()
        kind = cursor.scalar("I")
        if kind == _ARRAY:
            lengths[key] = cursor.skip_array()
        else:
            metadata[key] = cursor.value(kind)
    names, parameters = _check_tensors(cursor, tensor_count, metadata.get("general.alignment", 32))
    classifies = any(name.startswith("cls.") for name in names)
    return Header(version, metadata, lengths, tensor_count, parameters, classifies)


def _check_tensors(cursor: _Cursor, count: int, alignment: Any) -> tuple[list[str], int]:
    """The tensors' names and how many weights they have, once it is certain that the file holds all of them."""
    if not isinstance(alignment, int) or alignment <= 0:
        raise BrokenGGUF(f"its alignment is {alignment!r}")
    needed = parameters = 0
    names: list[str] = []
    for _ in range(count):
        name = cursor.string()
        names.append(name)
        dimensions = cursor.scalar("I")
        if dimensions > _MAX_DIMENSIONS:
            raise BrokenGGUF(f"its tensor {name!r} has {dimensions} dimensions")
        weights = 1
        for _ in range(dimensions):
            weights *= cursor.scalar("Q")
        parameters += weights
        block, bytes_per_block = _BLOCKS.get(cursor.scalar("I"), (1, 0))
        needed = max(needed, cursor.scalar("Q") + weights // block * bytes_per_block)
    start = -(-cursor.at // alignment) * alignment
    if start + needed > cursor.size:
        raise BrokenGGUF(f"it is cut short: its tensors need {start + needed} bytes, the file has {cursor.size}")
    return names, parameters


class _Cursor:
    """A place in the header that never reads past the end of the file."""

    def __init__(self, data: bytes | mmap.mmap, size: int) -> None:
        self._data = data
        self.size = size
        self.at = len(MAGIC)

    def scalar(self, code: str) -> Any:
        layout = struct.Struct("<" + code)
        return layout.unpack_from(self._data, self._advance(layout.size))[0]

    def string(self) -> str:
        size = self.scalar("Q")
        start = self._advance(size)
        return bytes(self._data[start : start + size]).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        return self.string() if kind == _STRING else self.scalar(_code(kind))

    def skip_array(self) -> int:
        """Step over it, and say how long it is."""
        kind, count = self.scalar("I"), self.scalar("Q")
        if kind == _STRING:
            unpack = struct.Struct("<Q").unpack_from
            for _ in range(count):
                at = self._advance(8)
                self._advance(unpack(self._data, at)[0])
        else:
            self._advance(struct.calcsize("<" + _code(kind)) * count)
        return int(count)

    def _advance(self, size: int) -> int:
        start = self.at
        if size > self.size - start:
            raise BrokenGGUF(f"its header is cut short: byte {start} wants {size} more, the file has {self.size}")
        self.at = start + size
        return start


def _code(kind: int) -> str:
    try:
        return _SCALARS[kind]
    except KeyError:
        raise BrokenGGUF(f"its header holds a value of unknown type {kind}") from None
