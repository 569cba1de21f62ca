"""Reads what compiler and linker wrote into an ELF file: the CPU, the build id and the compiler's name."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MAGIC = b"\x7fELF"
MACHINES = {3: "x86", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64", 258: "loongarch64"}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NOTE = struct.Struct("<III")
_NOTES, _BUILD_ID = 4, 3
_MOST_PARTS = 1000
_MOST_READ = 1 << 16
"""Bytes of one part of the file. A damaged file may name any size."""


@dataclass(frozen=True, slots=True)
class Elf:
    machine: str
    """As `platform.machine()` names it."""
    build_id: str = ""
    """The linker's hash of the content; empty: it wrote none."""
    compiler: str = ""
    size: int = 0
    """The file must have at least so many bytes; 0: unknown."""


def read_elf(path: Path) -> Elf | None:
    """None: it is no ELF file. Only the machine is read from a file that is not 64-bit little-endian.

    Raises `OSError`.
    """
    with path.open("rb") as file:
        start = file.read(_HEADER.size)
        if not start.startswith(MAGIC) or len(start) < 20:
            return None
        number = int.from_bytes(start[18:20], "little" if start[5] == 1 else "big")
        machine = MACHINES.get(number, f"machine {number}")
        if len(start) < _HEADER.size or start[4:6] != b"\x02\x01":
            return Elf(machine)
        _, _, _, _, _, _, sections, _, _, _, _, size, count, _ = _HEADER.unpack(start)
        try:
            return Elf(machine, _build_id(file, start), _compiler(file, start), sections + size * count)
        except struct.error:  # incomplete
            return Elf(machine, size=sections + size * count)


def _build_id(file: BinaryIO, header: bytes) -> str:
    _, _, _, _, _, offset, _, _, _, size, count, *_ = _HEADER.unpack(header)
    for at in range(min(count, _MOST_PARTS)):
        kind, _, start, _, _, length, *_ = _SEGMENT.unpack(_read(file, offset + at * size, _SEGMENT.size))
        if kind == _NOTES:
            for name, number, content in _notes(_read(file, start, length)):
                if (name, number) == (b"GNU\0", _BUILD_ID):
                    return content.hex()
    return ""


def _notes(data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """Name, type and content."""
    at = 0
    while at + _NOTE.size <= len(data):
        name_size, size, number = _NOTE.unpack_from(data, at)
        name = at + _NOTE.size
        content = name + (name_size + 3 & ~3)
        yield data[name : name + name_size], number, data[content : content + size]
        at = content + (size + 3 & ~3)


def _compiler(file: BinaryIO, header: bytes) -> str:
    """The first name in the section .comment: the compiler of most code comes first."""
    _, _, _, _, _, _, offset, _, _, _, _, size, count, names = _HEADER.unpack(header)
    sections = [
        _SECTION.unpack(_read(file, offset + at * size, _SECTION.size)) for at in range(min(count, _MOST_PARTS))
    ]
    if names >= len(sections):
        return ""
    texts = _read(file, sections[names][4], sections[names][5])
    for name, _, _, _, start, length, *_ in sections:
        if texts[name:].startswith(b".comment\0"):
            return _read(file, start, length).strip(b"\0").split(b"\0")[0].decode("utf-8", "replace")
    return ""


def _read(file: BinaryIO, offset: int, size: int) -> bytes:
    """Nothing where the file has no such place."""
    if offset >= os.fstat(file.fileno()).st_size:
        return b""
    file.seek(offset)
    return file.read(min(size, _MOST_READ))
