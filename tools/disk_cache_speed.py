"""Measures the disk cache on one disk: `python tools/disk_cache_speed.py FOLDER`. Figures: docs/lab.md."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from paddock.disk_cache import DirectoryChanges, DiskCache, DiskIndex, Entry, StateKey, entries_for
from paddock.types import StateOrigin

KEY = StateKey(StateOrigin("engine", "model", "f16", "f16", True, ""))
SPANS, FILES = 9, 10_000


def median(work: Callable[[int], object]) -> float:
    times = []
    for number in range(SPANS):
        begun = time.perf_counter()
        work(number)
        times.append(time.perf_counter() - begun)
    return sorted(times)[SPANS // 2]


def measure_spans(folder: str, size: int) -> None:
    cache, data = DiskCache(folder, 1 << 40, KEY), os.urandom(size)
    parts = [data[at : at + size // 60] for at in range(0, size, size // 60)]
    entries = [entries_for(KEY, "", [number, *range(255)], [0, 256])[0] for number in range(SPANS)]
    paths = [Path(folder, KEY.folder, KEY.namespace_folder(""), entry.name) for entry in entries]

    def write(number: int) -> None:
        assert cache.write(entries[number], parts, size, time.time()).entry is not None

    def read(number: int) -> None:
        assert cache.read(entries[number]) is not None

    def write_synced(_: int) -> None:
        with Path(folder, "synced").open("wb", buffering=0) as file:
            file.write(data)
            os.fsync(file.fileno())

    rows = {"write": median(write), "read, cached by the kernel": median(read)}
    os.sync()
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    rows["read from the disk"] = median(read)
    rows["read without mapping, and CRC-32"] = median(lambda number: zlib.crc32(paths[number].read_bytes()))
    rows["write and sync"] = median(write_synced)
    rows["CRC-32"] = median(lambda _: zlib.crc32(data))
    rows["SHA-256"] = median(lambda _: hashlib.sha256(data).digest())
    rows["BLAKE2b"] = median(lambda _: hashlib.blake2b(data).digest())
    for name, seconds in rows.items():
        print(f"{size >> 20:3} MiB  {name:34} {seconds * 1e3:7.1f} ms  {size / seconds / (1 << 30):5.2f} GiB/s")


def measure_index(folder: str) -> None:
    cache, state = DiskCache(folder, 1 << 40, KEY), bytes(4096)
    begun = time.perf_counter()
    for number in range(FILES // 100):
        for entry in entries_for(KEY, f"tenant {number % 20}", [number, *range(25_599)], range(0, 25_601, 256)):
            cache.write(entry, [state], len(state), time.time())
    print(f"write {FILES} spans of 4 KiB: {(time.perf_counter() - begun) / FILES * 1e6:.0f} us each")
    begun = time.perf_counter()
    changes = DirectoryChanges(cache)
    found = changes.look().found
    print(f"list {len(found)} headers: {(time.perf_counter() - begun) * 1e3:.0f} ms")
    for what in ("after changes in all folders", "without changes"):
        begun = time.perf_counter()
        changes.look()
        print(f"look again, {what}: {(time.perf_counter() - begun) * 1e3:.1f} ms")
    begun = time.perf_counter()
    cache.clean()
    print(f"count {len(found)} files: {(time.perf_counter() - begun) * 1e3:.0f} ms")


def measure_match() -> None:
    chance = random.Random(1)

    def prompt(length: int) -> list[int]:
        return [chance.randrange(150_000) for _ in range(length)]

    def spans(tokens: list[int]) -> list[Entry]:
        made = entries_for(KEY, "", tokens, [*range(0, len(tokens), 256), len(tokens)])
        return [replace(entry, size=1) for entry in made]

    long, system = prompt(100_000), prompt(3000)
    for name, prompts, asked in (
        ("one conversation of 100k tokens beside 96 of 25k", [long, *(prompt(25_000) for _ in range(96))], long),
        ("10,000 prompts with one system prompt of 3k", [system + prompt(200) for _ in range(10_000)], system + long),
    ):
        index = DiskIndex(KEY, (entry for tokens in prompts for entry in spans(tokens)))
        seconds = median(lambda _, index=index, asked=asked: index.match("", asked))  # type: ignore[misc]
        print(f"match of {len(asked)} tokens in {len(index)} spans, {name}: {seconds * 1e3:.1f} ms")


def main() -> None:
    for measure in (lambda at: measure_spans(at, 6 << 20), lambda at: measure_spans(at, 33 << 20), measure_index):
        folder = tempfile.mkdtemp(dir=sys.argv[1])
        try:
            measure(folder)
        finally:
            shutil.rmtree(folder)
    measure_match()


if __name__ == "__main__":
    main()
