"""Memory for spans of keys and values."""

from __future__ import annotations

import mmap
from contextlib import suppress

# A block of at least this size is mapped: it takes whole pages.
_MAPPED, _HUGE = 128 << 10, 2 << 20


def new_block(size: int) -> mmap.mmap | bytearray:
    """Memory that returns to the system when it is freed. The C library would keep it, in pieces."""
    if size < _MAPPED:
        return bytearray(size)
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory is the default
    if size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without large pages
            block.madvise(mmap.MADV_HUGEPAGE)  # one fault for each small page takes longer than the copy
    return block
