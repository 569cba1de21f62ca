"""Process metrics from the kernel, read on a thread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from paddock.fleet import host_memory_available


@dataclass(frozen=True, slots=True)
class Process:
    resident: int
    own: int
    """Without pages of files, which could be dropped and read again."""
    open_fds: int


@dataclass(frozen=True, slots=True)
class Processes:
    available: int
    """Bytes that could be allocated on this machine."""
    workers: dict[int, Process]


def read_processes(pids: Iterable[int]) -> Processes:
    """Processes that have ended are left out."""
    found = {pid: process for pid in pids if (process := _read(pid)) is not None}
    return Processes(host_memory_available(), found)


def _read(pid: int) -> Process | None:
    try:
        process = psutil.Process(pid)
        memory = process.memory_info()
        return Process(memory.rss, memory.rss - getattr(memory, "shared", 0), process.num_fds())
    except psutil.Error:
        return None
