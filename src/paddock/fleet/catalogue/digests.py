"""The SHA-256 of model files. A large file takes a minute, so each is read once, on a thread of its own.

The results are kept in the user's cache folder, by path, size, time of modification and inode.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from paddock.errors import PaddockError, ReceiptUnavailable
from paddock.libraries import cache_folder, read_cached, write_cached
from paddock.types import FileStamp

_PIECE = 4 << 20
_Entry = tuple[int, int, int, str]
"""Size, time of modification in nanoseconds, inode, digest."""


class FileDigests:
    """Use it on one event loop."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._cache = cache_folder(environment).parent / "model-digests.json"
        self._futures: dict[FileStamp, asyncio.Future[str]] = {}
        self._lock = threading.Lock()

    def start(self, paths: list[str]) -> None:
        """Read these files in the background, if their digests are not known."""
        for path in paths:
            with suppress(OSError):  # the load reports it
                self._future(stamp_of(Path(path)))

    async def sha256(self, stamp: FileStamp) -> str:
        """Raises `ReceiptUnavailable` if the file is no longer the one that was loaded."""
        return await asyncio.shield(self._future(stamp))

    def _future(self, stamp: FileStamp) -> asyncio.Future[str]:
        found = self._futures.get(stamp)
        if found is None or (found.done() and found.exception() is not None):
            loop = asyncio.get_running_loop()
            found = self._futures[stamp] = loop.create_future()
            found.add_done_callback(lambda done: done.exception())  # perhaps nobody waits for it
            # A daemon, so that the server can stop in the middle of a file.
            threading.Thread(target=self._run, args=(stamp, loop, found), name="sha256", daemon=True).start()
        return found

    def _run(self, stamp: FileStamp, loop: asyncio.AbstractEventLoop, future: asyncio.Future[str]) -> None:
        try:
            settle = partial(future.set_result, self._known(stamp) or self._compute(stamp))
        except PaddockError as error:
            settle = partial(future.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle)

    def _known(self, stamp: FileStamp) -> str:
        entry = self._kept().get(stamp.path)
        return entry[3] if entry is not None and entry[:3] == _facts(stamp) else ""

    def _compute(self, stamp: FileStamp) -> str:
        digest = sha256_of(stamp)
        with self._lock:
            write_cached(self._cache, self._kept() | {stamp.path: (*_facts(stamp), digest)})
        return digest

    def _kept(self) -> dict[str, _Entry]:
        return read_cached(self._cache, dict[str, _Entry]) or {}


def stamp_of(path: Path) -> FileStamp:
    """Raises `OSError`."""
    return _stamp(path, path.stat())


def sha256_of(stamp: FileStamp) -> str:
    """Reads the file. Raises `ReceiptUnavailable` if it is another one, before or after."""
    path, digest, piece = Path(stamp.path), hashlib.sha256(), memoryview(bytearray(_PIECE))
    try:
        with path.open("rb", buffering=0) as file:
            _check(stamp, _stamp(path, os.fstat(file.fileno())))
            while size := file.readinto(piece):
                digest.update(piece[:size])
            _check(stamp, _stamp(path, os.fstat(file.fileno())))
    except OSError as error:
        raise ReceiptUnavailable(f"cannot read {path.name} for its hash: {error.strerror}") from None
    return digest.hexdigest()


def _check(stamp: FileStamp, found: FileStamp) -> None:
    if found != stamp:
        name = Path(stamp.path).name
        raise ReceiptUnavailable(
            f"{name} was changed after it was loaded, so its hash is not that of the loaded model: load it again "
            "(`paddock stop`, or POST /admin/unload)"
        )


def _stamp(path: Path, status: os.stat_result) -> FileStamp:
    return FileStamp(str(path), status.st_size, status.st_mtime_ns, status.st_ino)


def _facts(stamp: FileStamp) -> tuple[int, int, int]:
    return stamp.size, stamp.modified, stamp.inode
