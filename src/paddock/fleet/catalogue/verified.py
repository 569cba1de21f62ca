"""Which pulled files have been compared with their digests, so that gigabytes are not read again at each start."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from pathlib import Path

import msgspec

_CHUNK = 1 << 20


class Verified(msgspec.Struct, frozen=True):
    """What a file was like when its content was compared. Whatever writes to it changes one of the first three."""

    size: int
    written: int
    inode: int
    digest: str
    revision: str = ""
    """Of the repository, when it was last pulled."""


class VerifiedFiles:
    """A file in the staging folder that names files by their path below the models' folder."""

    def __init__(self, folder: Path, staging: Path) -> None:
        self._folder = folder
        self._file = staging / "verified.json"

    def __getitem__(self, path: Path) -> Verified | None:
        """What is known of a file that has not been written to since."""
        known = self._read().get(str(path.relative_to(self._folder)))
        return known if known is not None and _state(path) == (known.size, known.written, known.inode) else None

    def add(self, path: Path, digest: str, revision: str) -> None:
        """Where that cannot be written, the file is compared again next time."""
        known, name = self._read(), str(path.relative_to(self._folder))
        now = Verified(*_state(path), digest, revision)
        if known.get(name) == now:
            return
        temporary = self._file.with_name(f".verified.{secrets.token_hex(4)}")
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(msgspec.json.encode(known | {name: now}))
            temporary.replace(self._file)

    def _read(self) -> dict[str, Verified]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, Verified])
        except (OSError, msgspec.MsgspecError):
            return {}  # then files are compared once more


def digest_of(path: Path, *, is_sha256: bool) -> str:
    """A file's SHA-256, or git's name of it, which the hub has for files that it stores in git itself."""
    with path.open("rb") as file:
        if is_sha256:
            return hashlib.file_digest(file, "sha256").hexdigest()
        digest = hashlib.sha1(b"blob %d\0" % os.fstat(file.fileno()).st_size, usedforsecurity=False)
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
        return digest.hexdigest()


def sync(path: Path) -> None:
    """Have a file, or a folder's entries, reach the disk."""
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
