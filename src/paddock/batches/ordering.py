"""The order in which lines are run: by their prompts, so that lines with a common prefix follow each other.

An external merge sort: memory is bounded by the size of a run, however large the file is.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final

LONGEST_KEY: Final = 64 * 1024
"""Bytes of a prompt that are compared. Prompts that share more than this keep the order of the file."""
_RUN_BYTES: Final = 32 * 1024 * 1024
_ENTRY_BYTES = 150
"""What Python needs for one entry, beside its key."""
_HEAD: Final = struct.Struct(">IQ")
_MOST_RUNS: Final = 64
"""More runs than this are merged first: each has an open file."""


class PrefixSort:
    """Sorts numbers of lines by keys. Use as a context; the temporary files are deleted at its end."""

    def __init__(self, folder: Path, run_bytes: int = _RUN_BYTES, most_runs: int = _MOST_RUNS) -> None:
        """The folder must not exist; it is created when the first run is written."""
        self._folder = folder
        self._run_bytes = run_bytes
        self._most_runs = most_runs
        self._entries: list[tuple[bytes, int]] = []
        self._size = 0
        self._runs: list[Path] = []
        self._written = 0

    def __enter__(self) -> PrefixSort:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for run in self._runs:
            run.unlink(missing_ok=True)
        if self._folder.exists():
            self._folder.rmdir()

    def add(self, key: bytes, number: int) -> None:
        key = key[:LONGEST_KEY]
        self._entries.append((key, number))
        self._size += len(key) + _ENTRY_BYTES
        if self._size >= self._run_bytes:
            self._spill()

    def numbers(self) -> Iterator[int]:
        """All numbers in order. Equal keys keep the order of their numbers."""
        if not self._runs:
            self._entries.sort()
            return (number for _, number in self._entries)
        self._spill()
        return (number for _, number in heapq.merge(*map(_read, self._runs)))

    def _spill(self) -> None:
        if not self._entries:
            return
        self._entries.sort()
        self._runs.append(self._write(iter(self._entries)))
        self._entries, self._size = [], 0
        if len(self._runs) >= self._most_runs:
            merged = self._write(heapq.merge(*map(_read, self._runs)))
            for run in self._runs:
                run.unlink()
            self._runs = [merged]

    def _write(self, entries: Iterator[tuple[bytes, int]]) -> Path:
        self._folder.mkdir(exist_ok=True)
        self._written += 1
        path = self._folder / str(self._written)
        with path.open("wb", buffering=1 << 20) as file:
            for key, number in entries:
                file.write(_HEAD.pack(len(key), number))
                file.write(key)
        return path


def _read(path: Path) -> Iterator[tuple[bytes, int]]:
    with path.open("rb", buffering=1 << 17) as file:
        while head := file.read(_HEAD.size):
            size, number = _HEAD.unpack(head)
            yield _exactly(file, size), number


def _exactly(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    assert len(data) == size, "this process wrote it"
    return data
