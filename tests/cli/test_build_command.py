"""`paddock build` as a command."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from paddock.cli.native.job import read_state
from paddock.libraries import IDENTITY, PINNED, Cpu, Identity, cache_folder, find_library, library_name, this_cpu
from tests.cli.build_driver import Toolchain
from tests.forking import run_command
from tests.server import Server

_WITHIN = 60.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of builds. The programs that compile are fakes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PADDOCK_LIBLLAMA", raising=False)  # the build must be found
    monkeypatch.setenv("PATH", Toolchain(tmp_path / "tools").path)
    for name in ("CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    return cache_folder(os.environ)


def _put(folder: Path, cpu: Cpu, *, copy: bool = False) -> Path:
    """A build that is the library of the tests."""

    def put(path: Path, name: str) -> None:
        shutil.copy(path, build / name) if copy else (build / name).symlink_to(path)

    found = find_library({})
    assert found is not None
    build = folder / "builds" / cpu.machine
    build.mkdir(parents=True)
    for path in found.path.parent.glob("lib*"):
        put(path, path.name)
    if not (build / library_name()).exists():
        put(found.path, library_name())
    (build / IDENTITY).write_bytes(msgspec.json.encode(Identity(PINNED, (), (), "c++ 12.2", cpu, 1.0)))
    return build


def test_check_says_what_is_used_and_what_is_not(folder: Path, tmp_path: Path) -> None:
    build, other = _put(folder, this_cpu()), _put(folder, Cpu("pdp11", "KA11"))
    done = run_command("build", "--check", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["library", "cpu", "build", "build", "gain", "to"]
    assert f"{build / library_name()} (paddock build) uses" in lines[0]
    assert f"{other}: {PINNED}, c++ 12.2, is not used: it was built for pdp11, and this machine is" in done.stdout
    assert "fake c++ 1.2.3" in lines[-1]
    found = json.loads(run_command("build", "--check", "--json", cwd=tmp_path).stdout)
    assert found["library"]["origin"] == "paddock build" and found["failure"] is None and found["missing"] is None
    assert [each["problem"] is None for each in found["builds"]].count(True) == 1


def test_without_a_compiler_check_says_what_is_missing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = run_command("build", "--check", cwd=tmp_path)
    assert done.returncode == 0 and "to build  a C++ compiler is missing: install one" in done.stdout
    done = run_command("build", cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.startswith("paddock: a C++ compiler is missing")
    done = run_command("build", "--background", cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.startswith("paddock: a C++ compiler is missing")


def test_the_path_of_a_build_and_removing_it(folder: Path, tmp_path: Path) -> None:
    done = run_command("build", "--path", cwd=tmp_path)
    assert done.returncode == 1 and "there is no build for this machine" in done.stderr
    build = _put(folder, this_cpu())
    assert run_command("build", "--path", cwd=tmp_path).stdout == f"{build}\n"
    assert run_command("build", "--remove", cwd=tmp_path).stdout == f"removed 1 build from {folder}\n"
    assert run_command("build", "--path", cwd=tmp_path).returncode == 1


@pytest.mark.skipif(sys.platform != "linux", reason="there is no sandbox")
def test_a_confined_worker_uses_the_build(folder: Path, tiny_models: dict[str, Path]) -> None:
    build = _put(folder, this_cpu(), copy=True)
    with Server("-m", str(tiny_models["llama"]), "-c", "256") as server:
        server.chat("a", max_tokens=1)
        workers = psutil.Process(server.process.pid).children(recursive=True)
        loaded = {mapped.path for worker in workers for mapped in worker.memory_maps()}
    libraries = {path for path in loaded if "llama" in Path(path).name and ".so" in Path(path).name}
    assert libraries and {Path(path).parent for path in libraries} == {build}


def test_a_source_package_with_another_hash(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "source.tar.gz").write_bytes(b"another one")
    done = run_command("build", "--source", "source.tar.gz", cwd=tmp_path)
    assert done.returncode == 1
    assert f"source.tar.gz is not the source package of {PINNED}: its SHA-256 is" in done.stderr
    assert done.stdout == "unpacking the source  (0 s)\n" and "Traceback" not in done.stderr


def test_a_build_in_the_background(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "source.tar.gz").write_bytes(b"another one")
    done = run_command("build", "--background", "--source", "source.tar.gz", cwd=tmp_path)
    assert done.returncode == 0 and "building in the background (process " in done.stdout
    until = time.monotonic() + _WITHIN
    while (state := read_state(folder)) is None or state.is_running:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert state.phase == "failed" and "is not the source package of" in state.message
    assert "the last one failed" in run_command("build", "--check", cwd=tmp_path).stdout
