"""Reads GGUF headers, with a cache in memory and one on disk.

Skipping the vocabularies of hundreds of files takes half a minute, so parsed headers are kept in the user's cache
folder. A broken or missing cache entry only means that the file is read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import msgspec

from paddock import __version__
from paddock.fleet.catalogue.gguf import BrokenGGUF, Header, parse_header

_LONG = 10_000
"""A header with at least this many array items is cached on disk."""


class _Entry(msgspec.Struct, frozen=True):
    paddock: str
    path: str
    size: int
    written: int
    header: Header


def read_header(path: Path) -> Header:
    """Read and check a file's header, once until the file changes.

    Raises `BrokenGGUF`, or `OSError` where the file cannot be read at all.
    """
    status = path.stat()
    found = _read(path, status.st_size, status.st_mtime_ns)
    if isinstance(found, BrokenGGUF):
        raise BrokenGGUF(*found.args)
    return found


def read_headers(paths: Sequence[Path]) -> Header:
    """The combined header of a model that is split into several files."""
    if len(paths) == 1:
        return read_header(paths[0])
    parts = [_read_part(path) for path in paths]
    return replace(
        parts[0],
        tensor_count=sum(part.tensor_count for part in parts),
        parameters=sum(part.parameters for part in parts),
        classifies=any(part.classifies for part in parts),
        tensors=tuple(tensor for part in parts for tensor in part.tensors),
    )


def _read_part(path: Path) -> Header:
    try:
        return read_header(path)
    except BrokenGGUF as error:
        raise BrokenGGUF(f"{path.name}: {error}") from None


@lru_cache(maxsize=4096)
def _read(path: Path, size: int, written: int) -> Header | BrokenGGUF:
    if (known := _cached(path, size, written)) is not None:
        return known
    with path.open("rb") as file:
        try:
            header = parse_header(file, size)
        except BrokenGGUF as error:
            return error
    if sum(header.lengths.values()) >= _LONG:
        with contextlib.suppress(OSError, ValueError, OverflowError):
            _store(_Entry(__version__, str(path), size, written, header), _cache_file(path))
    return header


def _cached(path: Path, size: int, written: int) -> Header | None:
    try:
        entry = msgspec.msgpack.decode(_cache_file(path).read_bytes(), type=_Entry)
    except (OSError, ValueError):
        return None
    found = (entry.paddock, entry.path, entry.size, entry.written)
    return entry.header if found == (__version__, str(path), size, written) else None


def _store(entry: _Entry, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(msgspec.msgpack.encode(entry))
    temporary.replace(target)


def _cache_file(path: Path) -> Path:
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "paddock" / "headers" / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}.msgpack"
