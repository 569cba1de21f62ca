"""What memory there is: how much of it is free on this machine, and how much a worker takes."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil
import structlog

from paddock.fleet.process.environment import ask_native, has_gpu

_log = structlog.get_logger(__name__)
_BELIEVED = 5.0
_ANSWER_WAIT = 30.0
# The names of a control group's limit, of what it uses, and of what of that is given back on demand: in both versions.
_VERSION_2 = ("memory.max", "memory.current", "inactive_file")
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


class Machine:
    """Implements `Memory` for the machine that this process runs on.

    Asked by any thread; an answer may take as long as a GPU's driver needs to start.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gpu: int | None = None
        self._asked_at: float | None = None

    def available(self) -> dict[str, int]:
        """Bytes that could be allocated now without swapping: of the `host`, and of all GPUs together (`gpu`), where
        there are any that libllama can use. What GPUs have is believed for a few seconds.
        """
        found = {"host": host_memory_available()}
        if (gpu := self._on_gpus()) is not None:
            found["gpu"] = gpu
        return found

    def taken(self, pid: int) -> dict[str, int]:
        """What a worker holds of the host that nobody could take from it; of GPUs that cannot be told."""
        found = footprint(pid)
        return {} if found is None else {"host": found.anonymous}

    def changed(self) -> None:
        """A worker has come or gone: what the GPUs had is not to be believed any longer."""
        with self._lock:
            self._asked_at = None

    def _on_gpus(self) -> int | None:
        if not has_gpu():
            return None
        with self._lock:
            if self._asked_at is None or time.monotonic() > self._asked_at + _BELIEVED:
                self._gpu = _ask_gpus()
                self._asked_at = time.monotonic()
            return self._gpu


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a process that lie in memory."""

    resident: int
    anonymous: int
    """Those of them that are its own. The rest are pages of files, such as a model's, which can be dropped and read
    again. Only Linux tells them apart.
    """


def footprint(pid: int) -> Footprint | None:
    """None if there is no such process any more."""
    try:
        info = psutil.Process(pid).memory_info()
    except psutil.NoSuchProcess:
        return None
    return Footprint(info.rss, info.rss - getattr(info, "shared", 0))


def host_memory_available() -> int:
    """Bytes that could be allocated now without swapping."""
    room = room_in_control_group()
    free = psutil.virtual_memory().available
    return free if room is None else min(free, room)


def host_memory_total() -> int:
    """Bytes that there are for this process: the machine's, or the tightest limit of its control groups."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([total, *_limits_of_control_groups(Path("/"))])


def room_in_control_group(root: Path = Path("/")) -> int | None:
    """The bytes that the tightest of our control groups has left; None where none has a limit."""
    return min(_rooms(root), default=None)


def _rooms(root: Path) -> Iterator[int]:
    for folder, names in _control_groups(root):
        if (room := _room(folder, *names)) is not None:
            yield room


def _limits_of_control_groups(root: Path) -> Iterator[int]:
    for folder, (limit, _, _) in _control_groups(root):
        try:
            yield int((folder / limit).read_text())
        except (OSError, ValueError):
            continue  # no such group, or "max"


def _control_groups(root: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """Those that this process is in, and the names of what they say of memory."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0":
            top, names = root / "sys/fs/cgroup", _VERSION_2
        elif "memory" in controllers.split(","):
            top, names = root / "sys/fs/cgroup/memory", _VERSION_1
        else:
            continue
        # A group is held to the limits of all that it is part of. In a container it may be seen from outside, by a
        # name that means nothing in here; then there is the top, which is its own.
        parts = [part for part in group.split("/") if part]
        for depth in range(len(parts) + 1):
            if ".." not in parts[:depth]:
                yield top.joinpath(*parts[:depth]), names


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


class _Gpu(msgspec.Struct):
    free: int


def _ask_gpus() -> int | None:
    """Free bytes of all together; None if there are none, or they could not be asked."""
    try:
        done = ask_native("devices", within=_ANSWER_WAIT)
        done.check_returncode()
        found = msgspec.json.decode(done.stdout, type=list[_Gpu])
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        _log.warning("the GPUs cannot be asked for their memory", error=str(error))
        return None
    return sum(gpu.free for gpu in found) if found else None
