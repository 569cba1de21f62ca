"""What the tests of the disk cache share: keys, spans, and a state that is known from the span."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from paddock.disk_cache import DirectoryChanges, DiskCache, Entry, StateKey, entries_for
from paddock.disk_cache.account import locked
from paddock.types import StateOrigin

ORIGIN = StateOrigin("engine 1", "digest", "f16", "f16", True, "n_threads 2")
KEY = StateKey(ORIGIN)
OTHER_KEY = StateKey(msgspec.structs.replace(ORIGIN, model="other"))
LARGE = 1 << 30


class Cache(DiskCache):
    """A cache that keeps its log lines."""

    def __init__(self, directory: Path | str, limit_bytes: int = LARGE, key: StateKey = KEY, model: str = "") -> None:
        self.lines: list[str] = []
        super().__init__(str(directory), limit_bytes, key, model=model, log=self.lines.append)

    def put(self, entry: Entry, now: float = 1000.0, chain: Sequence[Entry] = (), size: int = 100) -> Entry | None:
        state = state_of(entry, size)
        return self.write(entry, [state[:10], memoryview(state)[10:]], size, now, chain).entry

    def put_all(self, entries: Sequence[Entry], now: float = 1000.0, size: int = 100) -> list[Entry]:
        """Write a chain, which must succeed."""
        written: list[Entry] = []
        for entry in entries:
            found = self.put(entry, now, written, size)
            assert found is not None
            written.append(found)
        return written

    def all_entries(self) -> list[Entry]:
        return DirectoryChanges(self).look().found

    def has(self, entry: Entry) -> bool:
        """Whether the span is there. If it is, its state must be the right one."""
        found = self.read(entry)
        assert found is None or bytes(found) == state_of(entry, len(found))
        return found is not None

    def path(self, entry: Entry) -> Path:
        return Path(self.directory, self.key.folder, self.key.namespace_folder(entry.namespace), entry.name)


def state_of(entry: Entry, size: int) -> bytes:
    return hashlib.shake_128(entry.name.encode()).digest(size)


def chain(namespace: str = "", tokens: int = 30, step: int = 10, *, first: int = 0, key: StateKey = KEY) -> list[Entry]:
    """The spans of a prefix that begins with the token `first`."""
    return entries_for(key, namespace, list(range(first, first + tokens)), [*range(0, tokens, step), tokens])


def on_disk(directory: Path | str) -> dict[str, int]:
    """The regular files two folders below the directory, and their sizes."""
    found = {}
    for folder, _, names in os.walk(directory):
        if len(Path(folder).relative_to(directory).parts) == 2:
            for name in names:
                if (path := Path(folder, name)).is_file() and not path.is_symlink():
                    found[name] = path.stat().st_size
    return found


def accounted(directory: Path | str) -> int | None:
    with locked(str(directory)) as account:
        return account.total()
