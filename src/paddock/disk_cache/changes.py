"""Which files of a state key there are, and which ones other processes write and remove.

Names are listed, and only the headers of new files are read. A folder whose time of change stays the same is not listed
again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from paddock.disk_cache import folders
from paddock.disk_cache.entry import Entry
from paddock.disk_cache.store import DiskCache


@dataclass(slots=True)
class Changed:
    found: list[Entry] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    """Names of files."""
    is_complete: bool = True
    """All headers were read: no more follows with the next look unless something changes."""

    def __bool__(self) -> bool:
        return bool(self.found or self.gone)


@dataclass(slots=True)
class _Folder:
    """What was seen of one namespace's folder."""

    names: set[str] = field(default_factory=set)
    changed_at: int = -1
    is_settled: bool = False
    """It was listed twice since that time, and all its headers were read. So what changed in the same moment as the
    first list, with the same time, is in the second one.
    """


class DirectoryChanges:
    """Each `look` gives what changed since the last one, the changes of this process included."""

    def __init__(self, cache: DiskCache) -> None:
        self._cache = cache
        self._folders: dict[str, _Folder] = {}
        self._forgotten: deque[str] = deque()

    def forget(self, names: Iterable[str]) -> None:
        """This process removed these files, or could not read them: if they are there, the next look finds them. Other
        threads may call this.
        """
        self._forgotten.extend(names)

    def look(self, most: int | None = None) -> Changed:
        """Read at most so many headers; the rest follows with the next look. A file that cannot be used is skipped
        with one log line, and removed if it is damaged.
        """
        while self._forgotten:
            name = self._forgotten.popleft()
            for folder in self._folders.values():
                if name in folder.names:
                    folder.names.remove(name)
                    folder.is_settled = False
        changed = Changed()
        times = folders.namespaces(self._cache.directory, self._cache.key.folder)
        for name in self._folders.keys() - times.keys():
            changed.gone += self._folders.pop(name).names
        left = most
        for name, changed_at in times.items():
            folder = self._folders.setdefault(name, _Folder())
            if folder.is_settled and folder.changed_at == changed_at:
                continue
            names = folders.span_names(self._cache.directory, self._cache.key.folder, name)
            new = [span for span in names if span not in folder.names]
            chosen = new[:left]
            has_all = len(chosen) == len(new)
            changed.is_complete &= has_all
            folder.is_settled = folder.changed_at == changed_at and has_all
            folder.changed_at = changed_at
            changed.gone += folder.names.difference(names)
            changed.found += self._cache.entries(name, chosen)
            folder.names.intersection_update(names)
            folder.names.update(chosen)
            left = None if left is None else left - len(chosen)
        return changed
