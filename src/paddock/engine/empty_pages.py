"""Gives the memory of empty cells back to the system.

libllama writes zeros to all cells when it creates a context, so all of them take memory before the first token. Linux
gives out zeroed pages when they are first written. So pages that are zero anyway are given back: cells take memory when
they are used.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

Range = tuple[int, int]
"""Two addresses."""

_MAPS = Path("/proc/self/maps")
_LEAST = 16 << 20
"""A smaller range is not examined. Heaps of the C library and of Python grow in smaller steps."""
_BLOCK = 1 << 20
_WORD = 8
_DONT_NEED = 4


def anonymous_ranges() -> list[Range]:
    """The memory of this process that is no file's, in order of the addresses. Empty where it is unknown."""
    return list(_ranges(_MAPS.read_text().splitlines())) if sys.platform == "linux" else []


def added(before: Iterable[Range], after: Iterable[Range]) -> list[Range]:
    """What `after` has and `before` has not. Both are in order."""
    found: list[Range] = []
    known = list(before)
    for start, end in after:
        for low, high in known:
            if low < end and start < high:
                if start < low:
                    found.append((start, low))
                start = max(start, high)
        if start < end:
            found.append((start, end))
    return found


def common(some: Iterable[Range], others: Sequence[Range]) -> list[Range]:
    """What both have."""
    pairs = [(max(start, low), min(end, high)) for start, end in some for low, high in others]
    return [(start, end) for start, end in pairs if start < end]


def release(ranges: Iterable[Range]) -> int:
    """Give back the pages in these ranges that are zero. Returns their bytes. What is not mapped any more is skipped.

    Nothing else may write to them meanwhile. A page that is given back is read as zero.
    """
    library = ctypes.CDLL(None)
    compare, advise = library.memcmp, library.madvise
    compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    released = 0
    for start, end in common(ranges, anonymous_ranges()):
        for block in range(start, end - _BLOCK + 1 if end - start >= _LEAST else start, _BLOCK):
            is_zero = ctypes.c_uint64.from_address(block).value == 0
            # Each word equals the next one.
            is_zero = is_zero and compare(block, block + _WORD, _BLOCK - _WORD) == 0
            if is_zero and advise(block, _BLOCK, _DONT_NEED) == 0:
                released += _BLOCK
    return released


def _ranges(lines: Iterable[str]) -> Iterator[Range]:
    for line in lines:
        place, mode, _, _, inode, *name = line.split(maxsplit=5)
        if mode == "rw-p" and inode == "0" and not name:
            start, _, end = place.partition("-")
            yield int(start, 16), int(end, 16)
