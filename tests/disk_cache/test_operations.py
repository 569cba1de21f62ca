"""Any sequence of operations of several processes, with damage in between: the account equals what is on disk, only
right states are read, and the least recently used spans are evicted.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paddock.disk_cache import DirectoryChanges, DiskIndex, Entry, entries_for
from tests.disk_cache.spans import KEY, OTHER_KEY, Cache, accounted, on_disk, state_of
from tests.tiers import examples

LIMIT = 2000
_who = st.integers(0, 2)
_paths = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(tuple)
_cuts = st.integers(0, 5)
_namespaces = st.sampled_from(["", "a", "a\0True\0()"])
_number = st.integers(0, 1 << 20)


class Operations(RuleBasedStateMachine):
    """Two processes that serve one model, and one that serves another."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.now = 1000.0
        self.used: dict[str, tuple[float, int]] = {}
        """The time of the last use and the start, of every span that was written and not removed."""
        self.known: dict[str, tuple[int, Entry]] = {}
        """Every entry that was ever written, and whose it is."""
        self.foreign: dict[Path, int] = {}
        self.tampered = False

    @initialize(with_damage=st.booleans())
    def start(self, with_damage: bool) -> None:
        self.with_damage = with_damage
        self.caches = [self._open(0), self._open(1), self._open(2)]
        self.indexes = [DiskIndex(cache.key) for cache in self.caches]
        self.changes = [DirectoryChanges(cache) for cache in self.caches]
        self.unseen: list[set[str]] = [set(), set(), set()]
        """What a process wrote itself since its last look. If another one removes it before, it is found missing when
        it is read.
        """
        self.moment = 0

    def _open(self, who: int) -> Cache:
        return Cache(self.directory, LIMIT, KEY if who < 2 else OTHER_KEY, "model" if who < 2 else "other")

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    def _tick(self) -> float:
        self.now += 1
        return self.now

    def _pick(self, number: int) -> tuple[int, Entry]:
        names = sorted(self.known)
        return self.known[names[number % len(names)]]

    # ── operations ───────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(who=_who, namespace=_namespaces, spans=st.lists(st.tuples(_paths, _cuts), min_size=1, max_size=4))
    def write(self, who: int, namespace: str, spans: list[tuple[tuple[int, ...], int]]) -> None:
        for path, cut in spans:
            start = min(cut, len(path) - 1)
            (entry,) = entries_for(self.caches[who].key, namespace, path, [start, len(path)])
            before = self.indexes[who].match(namespace, path[:start])
            self._write(who, entry, [span for span, _ in before])

    def _write(self, who: int, entry: Entry, before: list[Entry]) -> None:
        now = self._tick()
        size = sum(entry.token_bytes) * 150 + entry.start  # the same for the same span, as with a real model
        state = state_of(entry, size)
        written = self.caches[who].write(entry, [state[: size // 2], state[size // 2 :]], size, now, before)
        assert written.entry is not None, "it is smaller than the bound"
        self.indexes[who].remove_named(written.evicted)
        self.changes[who].forget(written.evicted)
        self.indexes[who].add(written.entry)
        self.unseen[who].add(entry.name)
        self.known[entry.name] = (who, written.entry)
        for span in before:
            if span.name in self.used:
                self.used[span.name] = (now, -span.start)
        self.used[entry.name] = (now, -entry.start)
        gone = self.used.keys() - on_disk(self.directory).keys()
        assert entry.name not in gone
        assert {name for name in gone if (self.known[name][0] < 2) == (who < 2)} == gone & set(written.evicted)
        if gone and not self.tampered:
            latest = max(self.used[name] for name in gone)
            assert all(self.used[name] >= latest for name in self.used.keys() - gone), "the oldest were evicted"
        for name in gone:
            del self.used[name]

    @precondition(lambda self: self.known)
    @rule(who=st.integers(0, 1), number=_number)
    def touch(self, who: int, number: int) -> None:
        owner, entry = self._pick(number)
        if owner == 2:
            who = 2
        now = self._tick()
        missing = self.caches[who].touch([entry], now)
        assert (not missing) == (entry.name in on_disk(self.directory))
        if not missing:
            self.used[entry.name] = (now, -entry.start)

    @precondition(lambda self: self.known)
    @rule(number=_number)
    def remove(self, number: int) -> None:
        owner, entry = self._pick(number)
        self.caches[owner].remove([entry])
        self.indexes[owner].remove(entry)
        self.changes[owner].forget([entry.name])
        self.used.pop(entry.name, None)
        assert entry.name not in on_disk(self.directory)

    @precondition(lambda self: self.known)
    @rule(number=_number)
    def read(self, number: int) -> None:
        owner, entry = self._pick(number)
        was_there = entry.name in on_disk(self.directory)
        is_read = self.caches[owner].has(entry)
        assert is_read <= was_there
        if not is_read:
            assert not was_there or self.tampered
            self.indexes[owner].remove(entry)
            self.changes[owner].forget([entry.name])
            if entry.name not in on_disk(self.directory):
                self.used.pop(entry.name, None)

    @rule(who=_who)
    def restart(self, who: int) -> None:
        self.caches[who] = self._open(who)
        self.caches[who].clean()
        self.changes[who] = DirectoryChanges(self.caches[who])
        self.indexes[who] = DiskIndex(self.caches[who].key, self.changes[who].look().found)
        self.unseen[who].clear()
        self._check_index(who)

    @rule(who=_who, most=st.sampled_from([None, 1, 3]))
    def look(self, who: int, most: int | None) -> None:
        """A process finds what others wrote and removed, in as many looks as the headers need."""
        while True:
            self._set_times()
            changed = self.changes[who].look(most)
            assert most is None or len(changed.found) <= most
            self.indexes[who].remove_named(changed.gone)
            for entry in changed.found:
                self.indexes[who].add(entry)
            self.unseen[who] -= {entry.name for entry in changed.found}
            if changed.is_complete and not changed:
                break
        self._check_index(who)

    def _set_times(self) -> None:
        """A test is faster than the clock of the file system: each look has a later time than all changes before."""
        self.moment += 1
        for folder in self.directory.glob("*/*/"):
            if os.stat(folder).st_mtime > 1e6:  # it has changed
                os.utime(folder, (self.moment, self.moment))

    def _check_index(self, who: int) -> None:
        there = on_disk(self.directory)
        listed = {entry.name for entry in self.indexes[who]} - self.unseen[who]
        assert listed <= there.keys()
        if not self.tampered:
            mine = {name for name, (owner, _) in self.known.items() if (owner < 2) == (who < 2)}
            assert listed == there.keys() & mine - self.unseen[who]
            assert self.foreign or not self.caches[who].lines
        self.used = {name: used for name, used in self.used.items() if name in there}

    # ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _file(self, number: int) -> Path | None:
        found = sorted(path for path in self.directory.glob("*/*/*.kv") if path.is_file() and not path.is_symlink())
        return found[number % len(found)] if found else None

    @precondition(lambda self: self.with_damage)
    @rule(number=_number, at=_number, bits=st.integers(1, 255))
    def flip(self, number: int, at: int, bits: int) -> None:
        if (path := self._file(number)) is None or not (data := bytearray(path.read_bytes())):
            return
        data[at % len(data)] ^= bits
        self._put(path, bytes(data))

    @precondition(lambda self: self.with_damage)
    @rule(number=_number, at=_number)
    def truncate(self, number: int, at: int) -> None:
        if (path := self._file(number)) is not None and (data := path.read_bytes()):
            self._put(path, data[: at % len(data)])

    def _put(self, path: Path, data: bytes) -> None:
        times = path.stat()
        path.write_bytes(data)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        self.tampered = True

    @precondition(lambda self: self.with_damage)
    @rule(number=_number, kind=st.sampled_from(["pipe", "folder", "link", "notes"]))
    def something_else(self, number: int, kind: str) -> None:
        if (path := self._file(number)) is None:
            return
        other = path.with_name(f"{number:064x}-0-{number}.kv" if kind != "notes" else f"notes {number}")
        if other.exists() or other.is_symlink():
            return
        if kind == "pipe":
            os.mkfifo(other)
        elif kind == "folder":
            other.mkdir()
        elif kind == "link":
            other.symlink_to(path)
        else:
            other.write_text("notes")
        self.foreign[other] = os.lstat(other).st_ino

    @precondition(lambda self: self.with_damage)
    @rule(number=_number)
    def dead_writer(self, number: int) -> None:
        if (path := self._file(number)) is not None:
            path.with_name(f".{number}-{number:016x}.tmp").write_bytes(bytes(number % 100))
            self.tampered = True  # nothing was reserved for it

    # ── always ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def check(self) -> None:
        if not (self.directory / "lock").exists():
            return
        spans = {name: size for name, size in on_disk(self.directory).items() if name.endswith(".kv")}
        assert all(os.lstat(path).st_ino == inode for path, inode in self.foreign.items())
        if not self.tampered:
            assert spans.keys() == self.used.keys()
            assert accounted(self.directory) == sum(spans.values()) == self.caches[0].usage().bytes <= LIMIT

    @rule()
    def clean(self) -> None:
        """After a count everything is as if nothing had been damaged."""
        self.caches[0].clean()
        there = on_disk(self.directory)
        if self.directory.joinpath("lock").exists():
            spans = [size for name, size in there.items() if name.endswith(".kv")]
            assert accounted(self.directory) == sum(spans) <= LIMIT
            assert not any(name.endswith(".tmp") for name in there)


TestOperations = Operations.TestCase
TestOperations.settings = examples(100)
