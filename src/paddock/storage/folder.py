"""The data folder: which files it has, and the lock that keeps a second server out of it."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from paddock.errors import BatchesUnavailable


def default_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The user's data folder, by the XDG rules."""
    return Path(environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "paddock"


class DataFolder:
    """Files below one folder. It is created when it is locked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = path / "files"
        self.uploads = path / "uploads"
        self.sorting = path / "sorting"
        self._lock: int | None = None
        self._locking = threading.Lock()

    @property
    def database(self) -> Path:
        return self.path / "paddock.sqlite3"

    def file(self, id: str) -> Path:
        return self._files / id

    def upload(self, id: str) -> Path:
        """Where an upload is until it is complete."""
        return self.uploads / id

    def lock(self) -> None:
        """Take the folder for this process, if it is not taken yet. Raises `BatchesUnavailable`."""
        with self._locking:
            if self._lock is None:
                self._lock = self._take()

    def _take(self) -> int:
        try:
            for folder in (self.path, self._files, self.uploads, self.sorting):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise BatchesUnavailable(f"cannot use the data folder {self.path}: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            if not isinstance(error, BlockingIOError):
                raise BatchesUnavailable(f"cannot lock the data folder {self.path}: {error.strerror}") from None
            raise BatchesUnavailable(
                f"another server (process {holder or 'unknown'}) uses the data folder {self.path}: give each server a "
                "folder of its own with --data-dir"
            ) from None
        return descriptor

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def clear_unfinished(self) -> None:
        """Delete what a server left that did not end by itself: parts of uploads, and runs of a sort."""
        for folder in (self.uploads, self.sorting):
            for entry in folder.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def file_ids(self) -> Iterator[str]:
        return (entry.name for entry in self._files.iterdir())
