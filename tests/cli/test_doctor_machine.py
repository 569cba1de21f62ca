"""The checks of `paddock doctor` for the machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from paddock.cli.doctor.finding import Level
from paddock.cli.doctor.machine import (
    check_cache_folder,
    check_gpu,
    check_identity,
    check_open_files,
    check_processor,
    check_sandbox,
    check_space,
    examine_build,
    gpu_here,
    processor_flags,
)
from paddock.cli.doctor.models import (
    check_speed,
)
from paddock.config import ModelManagerSettings
from paddock.fleet.process.native import Build, Gpu, ask_build
from paddock.types import SandboxMode, SandboxState
from tests.cli.findings import worst

GIB = 1 << 30


@pytest.mark.parametrize(
    ("build", "flags", "level", "says"),
    [
        (Build(features=("AVX2", "FMA", "F16C", "OPENMP")), "avx2 fma f16c sse4_2", "ok", "AVX2, FMA, F16C"),
        (Build(features=("AVX2", "AVX512")), "avx2 fma f16c", "problem", "AVX512, which this CPU does not have"),
        (Build(features=("SSE3",)), "pni avx2", "warning", "without AVX2"),
        (Build(features=("NEON", "DOTPROD")), "asimd asimddp i8mm", "warning", "MATMUL_INT8"),
        (Build(features=("AVX2",)), "", "ok", "AVX2"),
        (Build(failure="it ended with SIGILL", illegal_instruction=True), "avx", "problem", "paddock build"),
    ],
)
def test_the_cpu(build: Build, flags: str, level: Level, says: str) -> None:
    found, text = worst([check_processor(build, frozenset(flags.split()))])
    assert found == level and says in text


def test_the_library() -> None:
    (refused,) = examine_build(Build(failure="cannot use libllama.so: it is no library"), frozenset())
    assert (refused.level, refused.text) == ("problem", "cannot use libllama.so: it is no library")
    (crashes,) = examine_build(Build(failure="it ended with SIGILL", illegal_instruction=True), frozenset())
    assert (crashes.level, crashes.about) == ("problem", "cpu")
    known = Build(version="0.5.0", commit="0c1e570", compiler="GCC: 12", origin="the system", path="/none/libllama.so")
    library, cpu = examine_build(known, frozenset())
    assert (library.level, cpu.level) == ("ok", "ok")
    assert library.text == "llama.cpp 0.5.0 (commit 0c1e570) from the system: /none/libllama.so, GCC: 12"
    assert "SHA-256 0123456789abcdef…" in check_identity(known, "0123456789abcdef" * 4).text


@pytest.mark.parametrize(
    ("gpus", "here", "built", "wanted", "opened", "level", "says"),
    [
        (1, "nvidia", True, True, True, "ok", "CUDA0 with 8.0 GiB of 16.0 GiB free"),
        (1, "nvidia", True, False, True, "warning", "n_gpu_layers is 0"),
        (0, "nvidia", False, True, True, "warning", "paddock build --cuda"),
        (0, "amd", False, True, True, "warning", "paddock build --rocm"),
        (0, "nvidia", False, False, True, "ok", "on the CPU"),
        (0, "nvidia", True, True, False, "problem", "nvidia-modprobe"),
        (0, None, True, True, False, "warning", "finds no GPU"),
        (0, None, False, True, True, "ok", "on the CPU"),
    ],
)
def test_the_gpu(gpus: int, here: Any, built: bool, wanted: bool, opened: bool, level: Level, says: str) -> None:
    build = Build(gpus=(Gpu("CUDA0", 8 * GIB, 16 * GIB),) * gpus)
    found, text = worst(check_gpu(build, here, built_for_gpu=built, wanted=wanted, devices_open=opened))
    assert found == level and says in text


def test_cpu_flags_and_gpu_are_detected(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nflags\t\t: fpu avx2 fma\n\nprocessor : 1\nflags\t: fpu\n")
    assert processor_flags(tmp_path / "cpuinfo") == {"fpu", "avx2", "fma"}
    assert processor_flags(tmp_path / "none") == frozenset()
    (tmp_path / "kfd").touch()
    assert gpu_here(tmp_path) == "amd"
    (tmp_path / "nvidia0").touch()
    assert gpu_here(tmp_path) == "nvidia"


def test_the_build_of_the_library_is_read() -> None:
    build = ask_build()
    assert build.failure == ""
    assert {"NEON", "SSE3"} & set(build.features)
    assert check_processor(build, processor_flags()).level != "problem", "the other tests use it"


def test_a_library_that_crashes_or_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nkill -ILL $$\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert ask_build().illegal_instruction
    python.write_text("#!/bin/sh\necho ImportError: gone >&2\nexit 1\n")
    assert ask_build() == Build(failure="ImportError: gone")


def test_speed() -> None:
    assert worst(check_speed(ModelManagerSettings(n_threads=4), 4))[0] == "ok"
    assert "n_threads to 4" in worst(check_speed(ModelManagerSettings(n_threads=8), 4))[1]
    for settings in ({"cont_batching": False}, {"flash_attn": "off"}, {"idle_timeout": 0}):
        assert worst(check_speed(ModelManagerSettings(n_threads=1, **settings), 4))[0] == "warning"
    exact = ModelManagerSettings(n_threads=1, cont_batching=False, parallel=1)
    assert worst(check_speed(exact, 4))[0] == "ok", "the user asked for it"
    early = ModelManagerSettings(n_threads=1, models={"a": {"path": "fake:", "preload": True}})
    assert "a when the server starts" in worst(check_speed(early, 1))[1]


def test_open_files_and_disk(tmp_path: Path) -> None:
    few = check_open_files(1024)
    assert few.level == "warning" and "LimitNOFILE" in few.cure
    assert check_open_files(524288).level == check_open_files(-1).level == "ok"
    assert check_space(tmp_path, 200 << 20).level == "warning"
    assert check_space(tmp_path, 20 * GIB).level == "ok"


@pytest.mark.parametrize(
    ("mode", "missing", "level", "text"),
    [
        ("auto", (), "ok", "no_new_privs, landlock (version 7), seccomp"),
        ("auto", ("landlock: none",), "warning", "missing: landlock: none"),
        ("required", ("landlock: none",), "problem", "no model can be loaded: landlock: none"),
        ("off", (), "warning", "sandbox is off"),
    ],
)
def test_the_sandbox(mode: SandboxMode, missing: tuple[str, ...], level: str, text: str) -> None:
    finding = check_sandbox(mode, SandboxState(("no_new_privs", "landlock", "seccomp"), 7, missing))
    assert finding.level == level
    assert text in finding.text


def test_the_folder_of_prefixes(tmp_path: Path) -> None:
    missing, shared, private = tmp_path / "a" / "b", tmp_path / "shared", tmp_path / "private"
    shared.mkdir(mode=0o755)
    private.mkdir(mode=0o700)
    assert (check_cache_folder(missing).level, check_cache_folder(private).level) == ("ok", "ok")
    found = check_cache_folder(shared)
    assert (found.level, found.cure) == ("warning", f"chmod 700 {shared}")
    (tmp_path / "file").write_text("")
    assert check_cache_folder(tmp_path / "file").level == "problem"
