"""Which libllama it is, by its files.

The build id, which the linker writes, is read in a moment: workers use it at every start. The SHA-256 of a library
may take a third of a second, so it is computed when somebody asks, and kept in a file of the user's cache.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from paddock.libraries.builds import cache_folder
from paddock.libraries.cache_file import read_cached, write_cached
from paddock.libraries.elf import read_elf

_Entry = tuple[int, int, str]
"""Size, time of modification in nanoseconds, digest."""
_known: dict[str, _Entry] = {}


def library_files(path: Path) -> list[Path]:
    """The file, and the libraries of ggml beside it, which have the kernels. Links are resolved."""
    beside = (each for each in path.parent.glob("libggml*") if each.is_file())
    return [path.resolve(), *sorted({each.resolve() for each in beside} - {path.resolve()})]


def build_id(path: Path) -> str:
    """Differs between any two builds. Of a library in one file it is the linker's build id, otherwise a digest of
    those of all files. A file without one is read whole.
    """
    ids = [(file.name, _file_id(file)) for file in library_files(path)]
    return ids[0][1] if len(ids) == 1 else hashlib.sha256(repr(ids).encode()).hexdigest()[:40]


def compiler(path: Path) -> str:
    """The name and version of the compiler; empty: unknown."""
    try:
        found = read_elf(path)
    except OSError:
        return ""
    return found.compiler if found is not None else ""


def sha256_by_file(path: Path) -> dict[str, str]:
    """The SHA-256 of each file, by name, the library itself first. A file that cannot be read is left out."""
    found = {}
    for file in library_files(path):
        try:
            found[file.name] = sha256(file)
        except OSError:
            continue
    return found


def sha256(path: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Computed once for each size and time of modification. Raises `OSError`."""
    cache = cache_folder(environment).parent / "digests.json"
    status = path.stat()
    stamp = (status.st_size, status.st_mtime_ns)
    for entries in (_known, _kept(cache)):
        if (entry := entries.get(str(path))) is not None and entry[:2] == stamp:
            _known[str(path)] = entry
            return entry[2]
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    _known[str(path)] = (*stamp, digest)
    write_cached(cache, _kept(cache) | {str(path): _known[str(path)]})
    return digest


def _kept(cache: Path) -> dict[str, _Entry]:
    return read_cached(cache, dict[str, _Entry]) or {}


def _file_id(path: Path) -> str:
    try:
        found = read_elf(path)
        return found.build_id if found is not None and found.build_id else sha256(path)
    except OSError:
        return ""
