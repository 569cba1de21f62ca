"""The control groups of this process, in which containers and services limit memory and CPUs (Linux)."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")


def control_groups(controller: str, root: Path = _ROOT) -> Iterator[tuple[Path, int]]:
    """The folders of the groups that limit what this controller does, with their version: 1 or 2."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0":
            top, version = root / "sys/fs/cgroup", 2
        elif controller in controllers.split(","):
            top, version = root / "sys/fs/cgroup" / controller, 1
        else:
            continue
        # The limits of all parent groups apply. In a container the path may be the host's and not exist here; then the
        # top is the container's own group.
        parts = [part for part in group.split("/") if part]
        for depth in range(len(parts) + 1):
            if ".." not in parts[:depth]:
                yield top.joinpath(*parts[:depth]), version


def usable_cpus(root: Path = _ROOT) -> int:
    """The CPUs that this process may use: those it may run on, and no more than the time that its groups have. A
    further thread would only make the others wait.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *_quotas(root)]))


def _quotas(root: Path) -> Iterator[int]:
    for folder, version in control_groups("cpu", root):
        try:
            if version == 2:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if quota != "max" and int(quota) > 0:
                yield math.ceil(int(quota) / int(period))
        except (OSError, ValueError, ZeroDivisionError):
            continue  # there is no such file, or no limit
