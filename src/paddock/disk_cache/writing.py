"""Writes the files of the cache: spans under a temporary name, and what each folder is for."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable

import msgspec

from paddock.disk_cache import folders, span_file
from paddock.disk_cache.entry import Entry
from paddock.types import StateOrigin

# https://bford.info/cachedir/: programs that make backups leave such folders out.
_TAG_NAME = "CACHEDIR.TAG"
_TAG = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n# The key-value cache of Paddock. It can be removed at any time.\n"
)


class ModelFile(msgspec.Struct, frozen=True):
    """Which model a state key belongs to, for people."""

    model: str
    """The path of its file."""
    origin: StateOrigin
    payload: str = ""


class TemporaryFile:
    """A span that is being written. A lock on it ends with the process, so that others can tell when to remove it."""

    def __init__(self, place: int, size: int) -> None:
        self._descriptor, self._name = folders.create_temporary(place, size)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            self._place = os.dup(place)
        except BaseException:
            os.close(self._descriptor)
            os.unlink(self._name, dir_fd=place)
            raise

    def fill(self, entry: Entry, parts: Iterable[bytes | memoryview], size: int, now: float) -> None:
        at = start = span_file.payload_start(entry)
        crc = 0
        for part in parts:
            view = memoryview(part).cast("B")
            crc = span_file.crc([view], crc)
            self._write(view, at)
            at += len(view)
        assert at - start == size, f"a state of {at - start} bytes instead of {size}"
        self._write(memoryview(span_file.encode_header(entry, size, crc)), 0)
        os.utime(self._descriptor, ns=(int(now * 1e9),) * 2)

    def _write(self, view: memoryview, at: int) -> None:
        while view:
            written = os.pwrite(self._descriptor, view, at)
            at, view = at + written, view[written:]

    def rename(self, name: str) -> int:
        """Returns the size of a file of this name that another process wrote meanwhile."""
        replaced = folders.size_of(name, self._place)
        os.rename(self._name, name, src_dir_fd=self._place, dst_dir_fd=self._place)
        return replaced or 0

    def unlink(self) -> None:
        try:
            os.unlink(self._name, dir_fd=self._place)
        except FileNotFoundError:
            pass  # somebody emptied the directory

    def close(self) -> None:
        os.close(self._descriptor)
        os.close(self._place)


def create_directory(path: str) -> None:
    """Create the directory of the cache, private and marked as a cache. One that exists is left as it is."""
    try:
        os.makedirs(path, mode=0o700)
    except FileExistsError:
        return
    with open(os.path.join(path, _TAG_NAME), "wb") as file:
        file.write(_TAG)


def write_model_file(place: int, content: ModelFile) -> None:
    """The caller holds the lock of the directory."""
    temporary = f".{folders.MODEL_FILE}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(temporary, flags, 0o600, dir_fd=place), "wb") as file:
        file.write(msgspec.json.encode(content))
    os.rename(temporary, folders.MODEL_FILE, src_dir_fd=place, dst_dir_fd=place)
