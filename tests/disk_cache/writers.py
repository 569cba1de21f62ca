"""Processes that write to one cache. Run as a program: `killed` and `together` (see test_processes.py)."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from paddock.disk_cache import Entry, entries_for
from tests.disk_cache.spans import KEY, Cache, accounted, on_disk, state_of

LIMIT = 1_500_000
PARTS = 20


def _entries(chance: random.Random) -> list[Entry]:
    """A chain that starts with one of a few prefixes, so that processes meet in the same files."""
    tokens = [chance.randrange(20), *range(chance.randrange(10, 200))]
    return entries_for(KEY, chance.choice(["a", "b"]), tokens, [0, len(tokens) // 2, len(tokens)])


def _size(entry: Entry) -> int:
    return 1000 * len(entry)


def _parts(entry: Entry, report: int | None = None) -> Iterator[bytes]:
    state = state_of(entry, _size(entry))
    step = len(state) // PARTS
    for at in range(0, len(state), step):
        if report is not None:
            os.write(report, b".")
        yield state[at : at + step]


def _write_chain(cache: Cache, chance: random.Random, report: int | None = None) -> None:
    before: list[Entry] = []
    for entry in _entries(chance):
        written = cache.write(entry, _parts(entry, report), _size(entry), time.time(), before).entry
        assert written is not None and cache.may_write(time.time()), cache.lines
        before.append(written)


def _check(directory: Path) -> int:
    """Every span is readable and right, nothing else is left, and the account is exact."""
    cache = Cache(directory, LIMIT)
    cache.clean()
    entries = cache.all_entries()
    for entry in entries:
        assert cache.has(entry), entry.name
    files = on_disk(directory)
    assert files == {entry.name: entry.size for entry in entries}, files
    assert accounted(directory) == sum(files.values()) <= LIMIT
    assert not cache.lines, cache.lines
    return len(entries)


def killed(directory: Path, times: int) -> None:
    """Kill a writer in the middle of its work, and check what it leaves."""
    chance = random.Random(times)
    read, write = os.pipe()
    unfinished = 0
    for number in range(times):
        pid = os.fork()
        if not pid:
            cache, own = Cache(directory, LIMIT), random.Random(number)
            while True:
                _write_chain(cache, own, write)
        for _ in range(chance.randrange(1, 5 * PARTS)):
            os.read(read, 1)
        time.sleep(chance.choice([0, 0, chance.random() / 500]))  # anywhere between two parts, and in eviction
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        unfinished += any(name.endswith(".tmp") for name in on_disk(directory))
        _check(directory)
    assert _check(directory) > 1
    assert unfinished, "some were killed in the middle of a file"


def together(directory: Path, processes: int, rounds: int) -> None:
    """Several processes write, read, touch, remove and clean at once."""
    children = []
    for number in range(processes):
        pid = os.fork()
        if not pid:
            _work(directory, random.Random(number), rounds)
            os._exit(0)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert codes == [0] * processes, codes
    assert _check(directory) > 1


def _work(directory: Path, chance: random.Random, rounds: int) -> None:
    cache = Cache(directory, LIMIT)
    try:
        for _ in range(rounds):
            _write_chain(cache, chance)
            total = accounted(directory)
            assert total is not None and total <= LIMIT
            known = cache.all_entries()
            chosen = chance.choices(known, k=3) if known else []
            for entry in chosen:
                cache.has(entry)
            cache.touch(chosen[:1], time.time())
            if chance.random() < 0.2:
                cache.remove(chosen[1:2])
            if chance.random() < 0.1:
                cache.clean()
        assert not cache.lines, cache.lines
    except BaseException:
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    what, where, numbers = sys.argv[1], Path(sys.argv[2]), [int(number) for number in sys.argv[3:]]
    if what == "killed":
        killed(where, *numbers)
    else:
        together(where, *numbers)
