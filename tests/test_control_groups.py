"""Limits of containers and services that decide how many threads compute."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paddock.control_groups import usable_cpus

ALL = 16


@pytest.fixture(autouse=True)
def _many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(ALL)), raising=False)


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("limit", "usable"),
    [
        ("max 100000", ALL),
        ("400000 100000", 4),
        ("250000 100000", 3),
        ("10000 100000", 1),
        ("9900000 100000", ALL),
        ("", ALL),
        ("nonsense", ALL),
        ("1 0", ALL),
    ],
)
def test_a_container_computes_with_the_cpus_of_its_limit(limit: str, usable: int, tmp_path: Path) -> None:
    root = _write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": f"{limit}\n"})
    assert usable_cpus(root) == usable


def test_the_tightest_group_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/system.slice/paddock.service\n",
        "sys/fs/cgroup/system.slice/cpu.max": "200000 100000\n",
        "sys/fs/cgroup/system.slice/paddock.service/cpu.max": "800000 100000\n",
    }
    assert usable_cpus(_write(tmp_path, files)) == 2


@pytest.mark.parametrize(("quota", "usable"), [("-1", ALL), ("300000", 3)])
def test_the_first_version(quota: str, usable: int, tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:cpu,cpuacct:/docker/1\n",
        "sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us": f"{quota}\n",
        "sys/fs/cgroup/cpu/docker/1/cpu.cfs_period_us": "100000\n",
    }
    assert usable_cpus(_write(tmp_path, files)) == usable


def test_a_system_without_control_groups(tmp_path: Path) -> None:
    assert usable_cpus(tmp_path) == ALL
