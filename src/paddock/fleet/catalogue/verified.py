"""Remembers which pulled files match their digests, so that gigabytes are not hashed at each start."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

import msgspec


class Verified(msgspec.Struct, frozen=True):
    """A file's state when its digest was checked. Writing to the file changes one of the first three fields."""

    size: int
    written: int
    inode: int
    digest: str
    revision: str = ""
    """The repository's revision when the file was last pulled."""

    def describes(self, path: Path) -> bool:
        return _state(path) == (self.size, self.written, self.inode)


class VerifiedFiles:
    """Stored as JSON in the staging folder, by path below the models' folder."""

    def __init__(self, folder: Path, staging: Path) -> None:
        self._folder = folder
        self._file = staging / "verified.json"

    def __getitem__(self, path: Path) -> Verified | None:
        """The entry of a file that has not changed since its check, or None."""
        known = self._read().get(str(path.relative_to(self._folder)))
        return known if known is not None and known.describes(path) else None

    def add(self, path: Path, digest: str, revision: str) -> None:
        """If the entry cannot be written, the file is checked again next time."""
        known, name = self._read(), str(path.relative_to(self._folder))
        now = Verified(*_state(path), digest, revision)
        if known.get(name) == now:
            return
        temporary = self._file.with_name(f".verified.{secrets.token_hex(4)}")
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(msgspec.json.encode(known | {name: now}))
            temporary.replace(self._file)

    def unchanged(self) -> set[Path]:
        """The files that have not changed since their check."""
        known = {self._folder / name: entry for name, entry in self._read().items()}
        return {path for path, entry in known.items() if entry.describes(path)}

    def delete(self, paths: Iterable[Path]) -> None:
        """Delete files, and the folders of repositories that are empty then."""
        for path in paths:
            path.unlink(missing_ok=True)
            for parent in path.relative_to(self._folder).parents[:-1]:
                with contextlib.suppress(OSError):  # not empty
                    (self._folder / parent).rmdir()

    def _read(self) -> dict[str, Verified]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, Verified])
        except (OSError, msgspec.MsgspecError):
            return {}


def digest_of(path: Path, *, is_sha256: bool) -> str:
    """A file's SHA-256 or git blob id; the hub gives the latter for files that it stores in git."""
    with path.open("rb") as file:
        if is_sha256:
            return hashlib.file_digest(file, "sha256").hexdigest()
        blob = hashlib.sha1(b"blob %d\0" % os.fstat(file.fileno()).st_size, usedforsecurity=False)
        return hashlib.file_digest(file, lambda: blob).hexdigest()


def sync(path: Path) -> None:
    """Flush a file or a folder's entries to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _state(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError:
        return -1, -1, -1
    return status.st_size, status.st_mtime_ns, status.st_ino
