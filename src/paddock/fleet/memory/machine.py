"""Measures memory: what is free on this machine, and what a worker takes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import structlog

from paddock.control_groups import control_groups
from paddock.fleet.process.environment import has_gpu
from paddock.fleet.process.native import Gpu, NativeQueryFailed, ask_native

_log = structlog.get_logger(__name__)
_GPU_CACHE_SECONDS = 5.0
_ANSWER_WAIT = 30.0
_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
"""The files of a control group, by version: its limit, its usage and its reclaimable part."""


class Machine:
    """Implements `Memory` for this machine. Thread-safe; a call may take as long as a GPU driver needs to start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gpu: int | None = None
        self._asked_at: float | None = None

    def available(self) -> dict[str, int]:
        """Bytes that can be allocated without swapping: `host`, and `gpu` for all GPUs that libllama can use. The value
        of the GPUs is cached for a few seconds.
        """
        found = {"host": host_memory_available()}
        if (gpu := self._on_gpus()) is not None:
            found["gpu"] = gpu
        return found

    def taken(self, pid: int) -> dict[str, int]:
        """Host memory of a worker that the kernel cannot reclaim. GPU memory per process is unknown."""
        found = anonymous_memory(pid)
        return {} if found is None else {"host": found}

    def changed(self) -> None:
        """A worker started or ended: drop the cached GPU value."""
        with self._lock:
            self._asked_at = None

    def _on_gpus(self) -> int | None:
        if not has_gpu():
            return None
        with self._lock:
            if self._asked_at is None or time.monotonic() > self._asked_at + _GPU_CACHE_SECONDS:
                self._gpu = _ask_gpus()
                self._asked_at = time.monotonic()
            return self._gpu


def anonymous_memory(pid: int) -> int | None:
    """Resident bytes of a process without pages of files, such as a model's, which the kernel can drop. Only Linux
    distinguishes them. None if the process has ended.
    """
    try:
        info = psutil.Process(pid).memory_info()
    except psutil.NoSuchProcess:
        return None
    return int(info.rss - getattr(info, "shared", 0))


def host_memory_available() -> int:
    """Bytes that can be allocated without swapping."""
    room = room_in_control_group()
    free = psutil.virtual_memory().available
    return free if room is None else min(free, room)


def host_memory_total() -> int:
    """The machine's memory, or the tightest limit of this process's control groups."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([total, *_limits_of_control_groups(Path("/"))])


def room_in_control_group(root: Path = Path("/")) -> int | None:
    """Bytes left in the tightest control group of this process; None without a limit."""
    rooms = (_room(folder, *_FILES[version]) for folder, version in control_groups("memory", root))
    return min((room for room in rooms if room is not None), default=None)


def _limits_of_control_groups(root: Path) -> Iterator[int]:
    for folder, version in control_groups("memory", root):
        try:
            yield int((folder / _FILES[version][0]).read_text())
        except (OSError, ValueError):
            continue  # no such group, or "max"


def _room(folder: Path, limit: str, used: str, reclaimable: str) -> int | None:
    try:
        most = (folder / limit).read_text().strip()
        if most == "max":
            return None
        statistics = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text().splitlines())
        left = int(most) - int((folder / used).read_text()) + int(statistics.get(reclaimable, 0))
    except (OSError, ValueError):
        return None
    return max(left, 0)


def _ask_gpus() -> int | None:
    """Free bytes of all GPUs; None if there are none or they cannot be queried."""
    try:
        found = ask_native("devices", list[Gpu], within=_ANSWER_WAIT)
    except NativeQueryFailed as error:
        _log.warning("cannot query the memory of the GPUs", error=str(error))
        return None
    return sum(gpu.free for gpu in found) if found else None
