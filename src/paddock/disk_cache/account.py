"""The bytes of all files in the directory, kept within a bound by all processes that use it.

Every change of a name happens under one lock, and so does the account, a number in the lock's file. A process that is
killed between the two leaves the account too high, never too low; it is counted anew when it reaches the bound.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from paddock.disk_cache import folders
from paddock.disk_cache.folders import Found

_LOCK = "lock"
_WAIT = 10.0
_PAUSE = 0.005
_TOTAL = struct.Struct("<8sQI")
_MAGIC = b"PADDUSED"
_HEADROOM = 32
"""Eviction frees this part of the bound more than it must, so that the next writes need not count again."""


class Account:
    """The account while the lock is held."""

    def __init__(self, root: str, descriptor: int) -> None:
        self._root = root
        self._descriptor = descriptor
        self.evicted: list[Found] = []
        """What was evicted while the lock is held."""

    def total(self) -> int | None:
        """The bytes of all files. None: they must be counted."""
        data = os.pread(self._descriptor, _TOTAL.size, 0)
        if len(data) != _TOTAL.size:
            return None
        magic, total, crc = _TOTAL.unpack(data)
        return total if magic == _MAGIC and crc == zlib.crc32(data[:16]) else None

    def set_total(self, total: int) -> None:
        data = _MAGIC + max(0, total).to_bytes(8, "little")
        os.pwrite(self._descriptor, data + zlib.crc32(data).to_bytes(4, "little"), 0)

    def add(self, size: int) -> None:
        """A reservation if `size` is positive. Unknown stays unknown."""
        if (total := self.total()) is not None:
            self.set_total(total + size)

    def reserve(self, size: int, limit: int) -> bool:
        """Count `size` more bytes; evict the least recently used files if there is no room."""
        total = self.total()
        if total is None or total + size > limit:
            total = self.evict(limit - size, limit // _HEADROOM)
        if total + size > limit:
            return False
        self.set_total(total + size)
        return True

    def count(self) -> list[Found]:
        """Count all files anew, and remove the temporary files of dead processes."""
        found = list(folders.files(self._root))
        kept = [file for file in found if not (file.temporary and _remove_dead(self._root, file))]
        self.set_total(sum(file.size for file in kept))
        return kept

    def evict(self, target: int, headroom: int = 0) -> int:
        """Count all files anew, and remove the least recently used ones until at most `target` bytes are left; if any
        must go, then up to `headroom` bytes more. Returns the bytes that are left.
        """
        kept = self.count()
        total = sum(file.size for file in kept)
        if total > target:
            for file in lru_order(kept):
                if total <= target and total - file.size < target - headroom:
                    break
                if remove(self._root, file) is not None:
                    total -= file.size
                    self.evicted.append(file)
        self.set_total(total)
        return total


def lru_order(found: list[Found]) -> list[Found]:
    """The spans in the order of eviction. Spans of one time are a chain, of which the end goes first."""
    spans = [file for file in found if not file.temporary]
    return sorted(spans, key=lambda file: (file.used_at, -file.start, file.name))


@contextmanager
def locked(root: str) -> Iterator[Account]:
    """Wait for the lock of a directory. Raises `OSError`, also if another process holds it for too long."""
    descriptor = _acquire(os.path.join(root, _LOCK), time.monotonic() + _WAIT)
    try:
        yield Account(root, descriptor)
    finally:
        os.close(descriptor)


def _acquire(path: str, deadline: float) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            while not _try_lock(descriptor):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"another process holds the lock of the cache for more than {_WAIT:.0f} s")
                time.sleep(_PAUSE)
            if _is_at(path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # somebody removed the file meanwhile, so this lock excludes nobody


def _is_at(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_dead(root: str, file: Found) -> bool:
    """Remove a temporary file that no process writes any more."""
    try:
        with (
            folders.folder(root, file.key, file.namespace) as place,
            folders.opened(file.name, place) as (descriptor, _),
        ):
            if not _try_lock(descriptor):
                return False
            os.unlink(file.name, dir_fd=place)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def remove(root: str, file: Found) -> int | None:
    """Remove a file, and its folders if they become empty. Returns its size, or None if there was nothing to remove."""
    try:
        with folders.folder(root, file.key, file.namespace) as place:
            status = os.stat(file.name, dir_fd=place, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                return None
            os.unlink(file.name, dir_fd=place)
    except OSError:
        return None
    folders.remove_empty(root, file.key, file.namespace)
    return status.st_size
