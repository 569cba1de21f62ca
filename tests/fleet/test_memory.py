"""Measured memory against real processes; control groups as files in a folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from paddock.fleet.memory.machine import Machine, anonymous_memory, room_in_control_group
from paddock.fleet.process.environment import has_gpu

MIB = 1 << 20

linux = pytest.mark.skipif(sys.platform != "linux", reason="there are control groups on Linux alone")


def _write(root: Path, files: dict[str, str | int]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def test_available_is_less_than_total() -> None:
    free = Machine().available()["host"]
    assert 0 < free < psutil.virtual_memory().total


def test_anonymous_memory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * (64 * MIB))
    script = (
        "import mmap, sys\n"
        "def step(): print(flush=True); sys.stdin.readline()\n"
        "step()\n"
        f"own = b'x' * {128 * MIB}\n"
        "step()\n"
        f"file = open({str(file)!r}, 'rb')\n"
        "mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
        "seen = sum(mapped[at] for at in range(0, len(mapped), 4096))\n"
        "step()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        seen = []
        for _ in range(3):
            process.stdout.readline()
            seen.append(anonymous_memory(process.pid))
            process.stdin.write("\n")
            process.stdin.flush()
        process.wait(30)
        before, allocated, mapped = seen
        assert before is not None and allocated is not None and mapped is not None
        assert 120 * MIB < allocated - before < 140 * MIB
        if sys.platform == "linux":
            assert mapped - allocated < 8 * MIB, "pages of files do not count"
    assert anonymous_memory(process.pid) is None


def test_cgroup_v2(tmp_path: Path) -> None:
    root = _write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slice/service",
            "sys/fs/cgroup/slice/memory.max": 1000,
            "sys/fs/cgroup/slice/memory.current": 900,
            "sys/fs/cgroup/slice/memory.stat": "anon 500\ninactive_file 250\nactive_file 100",
            "sys/fs/cgroup/slice/service/memory.max": "max",
            "sys/fs/cgroup/slice/service/memory.current": 800,
            "sys/fs/cgroup/slice/service/memory.stat": "anon 500",
        },
    )
    assert room_in_control_group(root) == 350
    (root / "sys/fs/cgroup/slice/service/memory.max").write_text("900\n")
    assert room_in_control_group(root) == 100
    (root / "sys/fs/cgroup/slice/service/memory.max").write_text("700\n")
    assert room_in_control_group(root) == 0, "never negative"


def test_cgroup_v1(tmp_path: Path) -> None:
    root = _write(
        tmp_path,
        {
            "proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/docker/abc\n1:cpuset:/\n0::/",
            "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": 5000,
            "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": 3000,
            "sys/fs/cgroup/memory/docker/abc/memory.stat": "inactive_file 1\ntotal_inactive_file 500",
        },
    )
    assert room_in_control_group(root) == 2500


@pytest.mark.parametrize("group", ["/", "/seen/from/outside", "/../elsewhere", "/a:b"])
def test_cgroup_in_a_container(tmp_path: Path, group: str) -> None:
    root = _write(
        tmp_path,
        {
            "proc/self/cgroup": f"0::{group}",
            "sys/fs/cgroup/memory.max": 4000,
            "sys/fs/cgroup/memory.current": 1000,
            "sys/fs/cgroup/memory.stat": "inactive_file 0",
        },
    )
    assert room_in_control_group(root) == 3000


@pytest.mark.parametrize("content", ["", "0::/", "0::/x\n3:cpu:/x"])
def test_cgroup_without_a_limit(tmp_path: Path, content: str) -> None:
    assert room_in_control_group(_write(tmp_path, {"proc/self/cgroup": content})) is None
    assert room_in_control_group(tmp_path / "nowhere") is None


@linux
def test_cgroups_of_this_machine() -> None:
    room = room_in_control_group()
    assert room is None or room > 0


def test_no_gpu_in_a_cpu_build() -> None:
    if has_gpu():
        pytest.skip("this build knows GPUs")
    done = subprocess.run([sys.executable, "-m", "paddock.worker.devices"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    assert "gpu" not in Machine().available()


@pytest.mark.parametrize("name", ["libggml-cuda.so.0", "libggml-vulkan.so", "libggml-metal.dylib"])
def test_a_broken_build_has_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    (tmp_path / name).touch()
    assert has_gpu()
    assert "gpu" not in Machine().available(), "its libraries are missing, so the query fails"
