"""Spans of one model in files: written, read, touched and removed. Safe with several threads and processes.

A file is written under a temporary name and then renamed, so that a killed process leaves no incomplete span. It is not
synced: after a power failure a file may lack data, which its checksums show. A cache may lose its last seconds, and a
sync of every span would cost more than what it saves.

A file is never changed once it has its name, so that a file that is being read stays valid, also after it was removed.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import groupby

from paddock.disk_cache import account, folders, span_file
from paddock.disk_cache.entry import Entry
from paddock.disk_cache.folders import Found
from paddock.disk_cache.keys import StateKey
from paddock.disk_cache.span_file import DamagedFile, UnusableFile
from paddock.disk_cache.writing import ModelFile, TemporaryFile, create_directory, write_model_file

RETRY_AFTER = 60.0
"""Seconds for which nothing is written after the disk refused a write."""

_PIECE = 512 << 10
"""Bytes that are read and checked at once: they are still in the core's cache when their checksum is computed."""

_NOT_USED = "a file of the disk cache cannot be used, and is skipped"


@dataclass(slots=True, frozen=True)
class Usage:
    files: int
    bytes: int
    """What counts against the bound: spans, and what is being written."""


@dataclass(slots=True, frozen=True)
class Written:
    entry: Entry | None
    """With the size of its file. None: it was not written."""
    evicted: Sequence[str] = ()
    """The names of this state key's files that were removed to make room."""
    is_refused: bool = False
    """It was not written because the disk is full or fails. Later it may be."""


class DiskCache:
    """The spans of one state key, in a directory that all models and processes share."""

    def __init__(
        self, directory: str, limit_bytes: int, key: StateKey, *, model: str = "", log: Callable[[str], None] = print
    ) -> None:
        """Does no I/O. `model` is the path of the model's file, for `paddock cache`."""
        self.directory = directory
        self.limit_bytes = limit_bytes
        self.key = key
        self._model = model
        self._log = log
        self._retry_at = float("-inf")
        self._stopped = False
        self._is_described = False

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def entries(self, folder: str, names: Iterable[str]) -> list[Entry]:
        """The spans with these names in the folder of a namespace, by their headers. A file that cannot be used is
        skipped with a log line, and removed if it is damaged.
        """
        try:
            with folders.folder(self.directory, self.key.folder, folder) as place:
                read = [self._entry(Found(self.key.folder, folder, name, 0, 0), place) for name in names]
        except OSError:
            return []  # it was removed meanwhile
        # The same namespace has another folder for each of its adapters and kinds of arithmetic.
        found = [entry for entry in read if entry is not None]
        owners = {name: self.key.namespace_folder(name) for name in {entry.namespace for entry in found}}
        return [entry for entry in found if owners[entry.namespace] == folder]

    def _entry(self, file: Found, place: int) -> Entry | None:
        try:
            with folders.opened(file.name, place) as (descriptor, status):
                entry = span_file.read_header(descriptor, status.st_size).entry
            if entry.name != file.name:
                raise DamagedFile("its header belongs to another file")
        except FileNotFoundError:
            return None
        except DamagedFile as error:
            self._discard(file, str(error))
            return None
        except (UnusableFile, OSError) as error:
            self._log(f"{_NOT_USED}: {file.name}: {_reason(error)}")
            return None
        return entry

    def read(self, entry: Entry, new_block: Callable[[int], bytearray | mmap.mmap] = bytearray) -> memoryview | None:
        """The state of a span, after its checksum was verified. None: it is not cached any more.

        It is in a block of its own, which `new_block` makes. A damaged file is removed, with a log line. The file is
        not mapped: a mapped page that cannot be read would end the process.
        """
        file = self._found(entry)
        try:
            with (
                folders.folder(self.directory, file.key, file.namespace) as place,
                folders.opened(file.name, place) as (descriptor, status),
            ):
                if hasattr(os, "posix_fadvise"):  # not on macOS
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
                header = span_file.read_header(descriptor, status.st_size)
                if replace(header.entry, size=0) != replace(entry, size=0):
                    raise DamagedFile("its header belongs to another file")
                state = memoryview(new_block(status.st_size - header.payload_start))
                if _read(descriptor, state, header.payload_start) != header.payload_crc:
                    raise DamagedFile("the checksum of its data is wrong")
        except FileNotFoundError:
            return None
        except DamagedFile as error:
            self._discard(file, str(error))
            return None
        except (UnusableFile, OSError, ValueError) as error:
            self._log(f"{_NOT_USED}: {file.name}: {_reason(error)}")
            return None
        return state

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def may_write(self, now: float) -> bool:
        """Whether the disk is worth a try: it refused nothing in the last minute."""
        return now >= self._retry_at

    def write(
        self, entry: Entry, parts: Iterable[bytes | memoryview], size: int, now: float, chain: Sequence[Entry] = ()
    ) -> Written:
        """Write a span whose state has `size` bytes. It is not written if it is too large, or if the disk is full or
        fails. This is logged once, and tried again after a minute.

        `now` is the time of day, as for `touch`. `chain` is the spans before this one: they are marked as used, so that
        they are not evicted before it.
        """
        entry = replace(entry, size=span_file.payload_start(entry) + size)
        if entry.size > self.limit_bytes:
            return Written(None)
        if not self.may_write(now):
            return Written(None, is_refused=True)
        self.touch(chain, now)
        evicted: list[str] = []
        try:
            if not self._has(entry, now) and not self._write(entry, parts, size, now, evicted):
                return Written(None, evicted, is_refused=True)  # others are writing, and have reserved all of it
        except FileExistsError as error:
            self._log(f"{_NOT_USED}: {error}")  # not a file, and not ours to remove
            return Written(None, evicted)
        except OSError as error:
            self._stop(error, now)
            return Written(None, evicted, is_refused=True)
        if self._stopped:
            self._stopped = False
            self._log(f"the disk cache is written again: {self.directory}")
        return Written(entry, evicted)

    def _has(self, entry: Entry, now: float) -> bool:
        """Whether there is a file of this size. Another is written anew: after a power failure it may lack its data."""
        try:
            with self._folder_of(entry.namespace) as place:
                size = folders.size_of(entry.name, place)
        except FileNotFoundError:
            return False
        return size == entry.size and not self.touch([entry], now)

    def _write(
        self, entry: Entry, parts: Iterable[bytes | memoryview], size: int, now: float, evicted: list[str]
    ) -> bool:
        create_directory(self.directory)
        with account.locked(self.directory) as used:
            is_room = used.reserve(entry.size, self.limit_bytes)
            evicted += [file.name for file in used.evicted if file.key == self.key.folder]
            if not is_room:
                return False
            try:
                self._describe_model()
                with self._folder_of(entry.namespace, create=True) as place:
                    file = TemporaryFile(place, entry.size)
            except BaseException:
                used.add(-entry.size)
                raise
        try:
            file.fill(entry, parts, size, now)
            with account.locked(self.directory) as used:
                used.add(-file.rename(entry.name))
        except BaseException:
            with account.locked(self.directory) as used:
                file.unlink()
                used.add(-entry.size)
            raise
        finally:
            file.close()
        return True

    def _describe_model(self) -> None:
        with folders.folder(self.directory, self.key.folder, create=True) as place:
            if not self._is_described or folders.size_of(folders.MODEL_FILE, place) is None:
                write_model_file(place, ModelFile(self._model, self.key.origin, self.key.payload))
                self._is_described = True

    def _stop(self, error: OSError, now: float) -> None:
        self._retry_at = now + RETRY_AFTER
        if not self._stopped:
            self._stopped = True
            self._log(f"the disk cache is not written for now: {self.directory}: {_reason(error)}")

    # ── use and removal ──────────────────────────────────────────────────────────────────────────────────────────────

    def touch(self, entries: Sequence[Entry], now: float) -> list[Entry]:
        """Mark a chain of spans as used at the time of day `now`. Returns those that are not cached any more."""
        missing: list[Entry] = []
        time_ns = int(now * 1e9)
        for namespace, group in groupby(entries, lambda entry: entry.namespace):
            chain = list(group)
            try:
                with self._folder_of(namespace) as place:
                    missing += [entry for entry in chain if not _touch(entry, place, time_ns)]
            except OSError:
                missing += chain
        return missing

    def remove(self, entries: Iterable[Entry]) -> None:
        self._remove([self._found(entry) for entry in entries])

    def _remove(self, found: list[Found]) -> None:
        try:
            with account.locked(self.directory) as used:
                used.add(-sum(account.remove(self.directory, file) or 0 for file in found))
        except OSError:
            pass  # it cannot be changed; eviction tries again

    def _discard(self, file: Found, reason: str) -> None:
        self._log(f"a file of the disk cache is damaged, and is removed: {file.name}: {reason}")
        self._remove([file])

    # ── the directory ────────────────────────────────────────────────────────────────────────────────────────────────

    def clean(self) -> None:
        """Remove the temporary files of dead processes, and evict what is over the bound. For a process that starts."""
        try:
            with account.locked(self.directory) as used:
                used.evict(self.limit_bytes)
        except FileNotFoundError:
            pass  # nothing was ever written
        except OSError as error:
            self._log(f"the disk cache cannot be cleaned up: {self.directory}: {_reason(error)}")

    def usage(self) -> Usage:
        """Counted anew, over all models."""
        found = list(folders.files(self.directory))
        return Usage(len(found), sum(file.size for file in found))

    def _folder_of(self, namespace: str, *, create: bool = False) -> AbstractContextManager[int]:
        names = (self.key.folder, self.key.namespace_folder(namespace))
        return folders.folder(self.directory, *names, create=create)

    def _found(self, entry: Entry) -> Found:
        namespace = self.key.namespace_folder(entry.namespace)
        return Found(self.key.folder, namespace, entry.name, entry.size, 0, entry.start, entry.end)


def _touch(entry: Entry, place: int, time_ns: int) -> bool:
    try:
        os.utime(entry.name, ns=(time_ns, time_ns), dir_fd=place, follow_symlinks=False)
    except FileNotFoundError:
        return False
    except OSError:
        pass  # a disk that cannot be written to can still be read
    return True


def _read(descriptor: int, into: memoryview, start: int) -> int:
    """Read a file from `start` on. Returns the checksum of what was read."""
    crc = at = 0
    while at < len(into):
        size = os.preadv(descriptor, [into[at : at + _PIECE]], start + at)
        if not size:
            raise DamagedFile(f"it ends after {start + at} bytes")
        crc = span_file.crc([into[at : at + size]], crc)
        at += size
    return crc


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
