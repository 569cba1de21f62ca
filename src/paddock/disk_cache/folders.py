"""The folders of the cache: DIR/<state key>/<namespace>/<span>.kv.

No link is followed below DIR, and only folders and files of this user are used: in a folder that others can write to,
somebody else could put a state for us to use, or a folder for us to write private prompts to.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from paddock.disk_cache.entry import FILE_NAME

MODEL_FILE = "model.json"
_FOLDER_NAME = re.compile(r"[0-9a-f]{32}")
_TEMPORARY_NAME = re.compile(r"\.(\d{1,15})-[0-9a-f]{16}\.tmp")
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe must not wait for a writer.
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True, frozen=True)
class Found:
    """A file in a namespace's folder, by its name. Nothing of it was read."""

    key: str
    namespace: str
    name: str
    size: int
    """Of a temporary file: what its writer will write."""
    used_at: int
    """The time of its last use, in ns."""
    start: int = 0
    end: int = 0
    temporary: bool = False


@contextmanager
def folder(root: str, *names: str, create: bool = False) -> Iterator[int]:
    """A descriptor of DIR, or of a folder below it. Raises `OSError`."""
    opened = [os.open(root, _OPEN_FOLDER)]
    try:
        for name in names:
            if create:
                try:
                    os.mkdir(name, 0o700, dir_fd=opened[-1])
                except FileExistsError:
                    pass
            opened.append(os.open(name, _OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=opened[-1]))
            _check_private(opened[-1], name)
        yield opened[-1]
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _check_private(descriptor: int, name: str) -> None:
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        raise PermissionError(f"the folder {name} belongs to another user")
    if status.st_mode & 0o077:
        raise PermissionError(f"the folder {name} is open to other users: its mode must be 0700")


@contextmanager
def opened(name: str, place: int) -> Iterator[tuple[int, os.stat_result]]:
    """A regular file of this user, for reading. Raises `OSError`."""
    descriptor = os.open(name, _OPEN_FILE, dir_fd=place)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError("it is not a regular file")
        if status.st_uid != os.geteuid():
            raise PermissionError("it belongs to another user")
        yield descriptor, status
    finally:
        os.close(descriptor)


def size_of(name: str, place: int) -> int | None:
    """The size of a regular file; None if there is none. Raises `FileExistsError` if there is something else."""
    try:
        status = os.stat(name, dir_fd=place, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise FileExistsError(f"{name} is not a regular file")
    return status.st_size


def create_temporary(place: int, size: int) -> tuple[int, str]:
    """A new file that will have this many bytes: its descriptor and its name."""
    name = f".{size}-{os.urandom(8).hex()}.tmp"
    return os.open(name, _OPEN_NEW, 0o600, dir_fd=place), name


def files(root: str) -> Iterator[Found]:
    """All spans and temporary files. What cannot be listed is left out."""
    for key in _names(root, []):
        for namespace in _names(root, [key]):
            yield from _files_of(root, key, namespace)


def namespaces(root: str, key: str) -> dict[str, int]:
    """The folders of a state key's namespaces, and when a name in each was last added or removed, in ns."""
    try:
        with folder(root, key) as place, os.scandir(place) as found:
            return {
                item.name: item.stat(follow_symlinks=False).st_mtime_ns
                for item in found
                if _FOLDER_NAME.fullmatch(item.name) and item.is_dir(follow_symlinks=False)
            }
    except OSError:
        return {}


def span_names(root: str, key: str, namespace: str) -> list[str]:
    """The names of all spans of a namespace. Nothing else is known of these files."""
    try:
        with folder(root, key, namespace) as place:
            return [name for name in os.listdir(place) if FILE_NAME.fullmatch(name)]
    except OSError:
        return []  # it was removed, or is not ours


def keys(root: str) -> list[str]:
    return _names(root, [])


def _names(root: str, names: list[str]) -> list[str]:
    try:
        with folder(root, *names) as place, os.scandir(place) as found:
            return sorted(
                item.name for item in found if _FOLDER_NAME.fullmatch(item.name) and item.is_dir(follow_symlinks=False)
            )
    except OSError:
        return []


def _files_of(root: str, key: str, namespace: str) -> list[Found]:
    found: list[Found] = []
    try:
        with folder(root, key, namespace) as place, os.scandir(place) as items:
            for item in items:
                if (file := _describe(key, namespace, item)) is not None:
                    found.append(file)
    except OSError:
        pass  # it was removed, or is not ours
    return found


def _describe(key: str, namespace: str, item: os.DirEntry[str]) -> Found | None:
    span, temporary = FILE_NAME.fullmatch(item.name), _TEMPORARY_NAME.fullmatch(item.name)
    if span is None and temporary is None:
        return None
    try:
        status = item.stat(follow_symlinks=False)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        return None
    if span is not None:
        start, end = int(span[1]), int(span[2])
        return Found(key, namespace, item.name, status.st_size, status.st_mtime_ns, start, end)
    assert temporary is not None
    return Found(key, namespace, item.name, int(temporary[1]), status.st_mtime_ns, temporary=True)


def remove_empty(root: str, key: str, namespace: str) -> None:
    """Remove the folder of a namespace, and that of its model, if they have no more files."""
    try:
        with folder(root, key) as place:
            os.rmdir(namespace, dir_fd=place)
            if _names(root, [key]):
                return
            os.unlink(MODEL_FILE, dir_fd=place)
        with folder(root) as place:
            os.rmdir(key, dir_fd=place)
    except OSError:
        pass  # it is not empty, or somebody else removed it
