"""Builds with programs that stand in for CMake and compilers. The real ones take ten minutes: `make test-native`."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from paddock.cli.native.checking import Checked, check_library
from paddock.cli.native.compiling import flags, progress
from paddock.cli.native.job import Order, State, is_running, read_state, remove_builds, run_build
from paddock.cli.native.source import unpack
from paddock.cli.native.tools import compile_environment, find_tools
from paddock.errors import StartupError
from paddock.libraries import IDENTITY, Cpu, Identity, Source, library_name, list_builds, this_cpu
from tests.cli.build_driver import Toolchain, accept, source_package
from tests.tiers import full

_WITHIN = 60.0


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toolchain:
    found = Toolchain(tmp_path / "tools")
    monkeypatch.setenv("PATH", found.path)
    for name in ("CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    return found


@pytest.fixture
def order(tmp_path: Path) -> Order:
    package = tmp_path / "package-1.0.tar.gz"
    return Order(tmp_path / "cache", package=package, source=source_package(package))


@pytest.fixture
def running(tools: Toolchain, order: Order) -> Iterator[subprocess.Popen[bytes]]:
    """A build in a process of its own, which compiles until it is ended."""
    tools.mode = "wait"
    command = [sys.executable, "-m", "tests.cli.build_driver", str(order.folder), str(order.package)]
    process = subprocess.Popen([*command, order.source.sha256], cwd=Path(__file__).parents[2])
    try:
        _wait(lambda: tools.compiling is not None and _state(order).percent == 50)
        yield process
    finally:
        process.kill()
        process.wait()
        if (compiling := tools.compiling) is not None:
            _wait(lambda: _is_gone(compiling))


def _wait(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + _WITHIN
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def _is_gone(pid: int) -> bool:
    """Also if nobody has asked for its exit status, as in a container without an init."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _made(order: Order) -> list[Path]:
    return [build.folder for build in list_builds(order.folder, this_cpu(), order.source) if build.problem is None]


def _leftovers(order: Order) -> list[Path]:
    return list(order.folder.glob("work-*"))


def _state(order: Order) -> State:
    state = read_state(order.folder)
    assert state is not None
    return state


# ── a build ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_build_is_published_with_its_identity(tools: Toolchain, order: Order) -> None:
    seen: list[tuple[str, int | None]] = []
    build = run_build(order, this_cpu(), accept, lambda state: seen.append((state.phase, state.percent)))
    assert _made(order) == [build.folder] and not _leftovers(order)
    assert (build.folder / library_name()).exists()
    identity = msgspec.json.decode((build.folder / IDENTITY).read_bytes(), type=Identity)
    assert identity == build.identity
    assert (identity.source, identity.cpu, identity.features) == (order.source, this_cpu(), ("AVX2",))
    assert identity.compiler == "fake c++ 1.2.3" and "-DGGML_NATIVE=ON" in identity.flags
    phases = [phase for phase, _ in seen]
    assert list(dict.fromkeys(phases)) == ["unpack", "configure", "compile", "check", "finished"]
    assert [percent for phase, percent in seen if phase == "compile"] == [0, 25, 50, 100]
    assert _state(order).phase == "finished" and not _state(order).is_running
    configured = (tools.folder / "configured").read_text("utf-8")
    assert "-G Ninja" in configured and "LLAMA_BUILD_SERVER=OFF" in configured


def test_the_real_library_passes_the_check(tools: Toolchain, order: Order) -> None:
    build = run_build(order, this_cpu(), check_library)
    assert build.identity is not None and {"NEON", "SSE3"} & set(build.identity.features)


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("damaged", "does not work here and is not used"),
        ("error", "a.cpp:7:1: error: expected ';'"),
        ("empty", "there is no library"),
    ],
)
def test_a_failed_build_is_not_used(tools: Toolchain, order: Order, mode: str, says: str) -> None:
    good = run_build(order, this_cpu(), accept)
    tools.mode = mode
    with pytest.raises(StartupError, match=r".") as raised:
        run_build(order, this_cpu(), check_library)
    assert says in raised.value.message
    state = _state(order)
    assert (state.phase, state.message) == ("failed", raised.value.message)
    assert _made(order) == [good.folder], "the one before is still used"
    assert not _leftovers(order)


def test_a_library_that_computes_wrongly_is_not_used(tools: Toolchain, order: Order) -> None:
    with pytest.raises(StartupError, match="a tiny model that counts says 3 after 1"):
        run_build(order, this_cpu(), lambda _path: Checked(problem="a tiny model that counts says 3 after 1"))
    assert _made(order) == []


def test_an_unexpected_error_is_kept_as_the_state(tools: Toolchain, order: Order) -> None:
    def fail(_path: Path) -> Checked:
        raise RuntimeError("unexpected")

    with pytest.raises(RuntimeError):
        run_build(order, this_cpu(), fail)
    assert _state(order).phase == "failed" and "unexpected" in _state(order).message
    assert not _leftovers(order) and not is_running(order.folder)


def test_a_new_build_replaces_the_old_one_but_not_that_of_another_cpu(tools: Toolchain, order: Order) -> None:
    first = run_build(order, this_cpu(), accept)
    other = run_build(order, Cpu("pdp11", "KA11"), accept)
    assert first.folder.exists(), "it is for another CPU than the one that built last"
    third = run_build(order, this_cpu(), accept)
    assert not first.folder.exists() and other.folder.exists() and third.folder.exists()
    assert third.identity is not None
    older = msgspec.structs.replace(third.identity, source=Source("package", "0.9", "0" * 64))
    (other.folder / IDENTITY).write_bytes(msgspec.json.encode(older))
    last = run_build(order, this_cpu(), accept)
    assert list(last.folder.parent.iterdir()) == [last.folder], "those of other versions are of no use"
    assert remove_builds(order.folder) == 1 and _made(order) == []


# ── the source ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_source_package_with_another_hash_is_refused(tools: Toolchain, order: Order) -> None:
    assert order.package is not None
    content = bytearray(order.package.read_bytes())
    content[-20] ^= 1
    order.package.write_bytes(content)
    with pytest.raises(StartupError, match=f"is not the source package of package 1.0: .*{order.source.sha256}"):
        run_build(order, this_cpu(), accept)
    assert not (tools.folder / "configured").exists()


def test_a_damaged_source_package_is_refused(tools: Toolchain, order: Order, tmp_path: Path) -> None:
    package = tmp_path / "package-1.0.tar.gz"
    package.write_bytes(package.read_bytes()[:60])
    known = Source("package", "1.0", hashlib.sha256(package.read_bytes()).hexdigest())
    with pytest.raises(StartupError, match=r"cannot unpack package-1\.0\.tar\.gz"):
        run_build(Order(order.folder, package=package, source=known), this_cpu(), accept)
    known = source_package(package, ("README.md",))
    with pytest.raises(StartupError, match=r"does not contain vendor/llama.cpp/CMakeLists.txt"):
        run_build(Order(order.folder, package=package, source=known), this_cpu(), accept)
    with pytest.raises(StartupError, match="No such file"):
        run_build(Order(order.folder, package=tmp_path / "none", source=known), this_cpu(), accept)


def test_only_what_is_compiled_is_unpacked(tools: Toolchain, order: Order) -> None:
    assert order.package is not None
    code = unpack(order.package, order.folder)
    assert sorted(path.name for path in code.rglob("*") if path.is_file()) == ["CMakeLists.txt", "a.cpp"]


# ── interrupted, and at the same time ────────────────────────────────────────────────────────────────────────────────


@full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_build_leaves_nothing(
    running: subprocess.Popen[bytes], tools: Toolchain, order: Order, number: int
) -> None:
    running.send_signal(number)
    assert running.wait(_WITHIN) != 0
    compiling = tools.compiling
    assert compiling is not None
    _wait(lambda: _is_gone(compiling))
    state = _state(order)
    assert (state.phase, state.percent, state.is_running) == ("cancelled", 50, False)
    assert _made(order) == [] and not _leftovers(order)


def test_a_killed_build_is_not_used_and_the_next_one_removes_it(
    running: subprocess.Popen[bytes], tools: Toolchain, order: Order
) -> None:
    running.kill()
    running.wait()
    state = _state(order)
    assert (state.phase, state.message, state.is_running) == ("cancelled", "it was killed at compile", False)
    assert _made(order) == [] and len(_leftovers(order)) == 1
    compiling = tools.compiling
    assert compiling is not None
    _wait(lambda: _is_gone(compiling))  # its output has no reader any more
    tools.mode = "ok"
    build = run_build(order, this_cpu(), accept)
    assert _made(order) == [build.folder] and not _leftovers(order)


def test_a_second_build_says_that_one_is_running(running: subprocess.Popen[bytes], order: Order) -> None:
    state = _state(order)
    assert (state.phase, state.percent, state.pid, state.is_running) == ("compile", 50, running.pid, True)
    with pytest.raises(StartupError, match=rf"another build is running \(process {running.pid}\)"):
        run_build(order, this_cpu(), accept)
    with pytest.raises(StartupError, match="another build is running"):
        remove_builds(order.folder)
    assert _state(order).is_running and len(_leftovers(order)) == 1, "the first one goes on"


# ── tools ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_missing_programs_are_named(tools: Toolchain, tmp_path: Path) -> None:
    found = find_tools((), {"PATH": str(tools.folder)})
    assert (found.compiler, found.missing) == ("fake c++ 1.2.3", [])
    (tools.folder / "ninja").unlink()
    assert find_tools((), {"PATH": str(tools.folder)}).missing == ["ninja"], "it comes from the Python index"
    with pytest.raises(StartupError, match=r"a C\+\+ compiler is missing: install one"):
        find_tools((), {"PATH": str(tmp_path)})
    with pytest.raises(StartupError, match=r"/nowhere/c\+\+ -O2, from CXX, does not exist"):
        find_tools((), {"PATH": str(tools.folder), "CXX": "/nowhere/c++ -O2"})
    with pytest.raises(StartupError, match=r"--vulkan needs the Vulkan SDK .*: glslc is not on PATH"):
        find_tools(("vulkan",), {"PATH": str(tools.folder)})
    (tools.folder / "cc").unlink()
    with pytest.raises(StartupError, match="a C compiler is missing"):
        find_tools((), {"PATH": str(tools.folder)})


@pytest.mark.skipif(sys.platform == "darwin", reason="it has Metal")
def test_metal_needs_macos(tools: Toolchain) -> None:
    with pytest.raises(StartupError, match="--metal needs macOS"):
        find_tools(("metal",))


def test_backends_are_options_of_cmake() -> None:
    assert "-DGGML_CUDA=ON" in flags(("cuda",)) and "-DGGML_HIP=ON" in flags(("rocm",))
    assert not [flag for flag in flags(()) if "CUDA" in flag]


def test_progress_of_ninja_and_make() -> None:
    lines = [
        "[ 12%] Building CXX",
        "[82/164] Building",
        "-- Found Git",
        "[100%] Built target llama",
        "[0/0] Re-checking",
    ]
    assert [progress(line) for line in lines] == [12, 50, None, 100, 0]


@pytest.mark.parametrize(
    ("compiler", "cpu", "kept"),
    [
        ("c++ (Debian 12.2.0-14) 12.2.0", "amx_tile", True),
        ("c++ (GCC) 12.4.0", "amx_tile", False),
        ("c++ (GCC) 10.2.1", "amx_tile", True),
        ("g++ (GCC) 14.1.0", "amx_tile", False),
        ("Debian clang version 14.0.6", "amx_tile", False),
        ("c++ (Debian 12.2.0-14) 12.2.0", "avx2", False),
    ],
)
def test_a_compiler_that_breaks_amx_gets_a_flag(compiler: str, cpu: str, kept: bool) -> None:
    changed = compile_environment(compiler, {"CXXFLAGS": "-g"}, cpu)
    assert changed["CXXFLAGS"] == ("-g -fno-tree-dse -fno-dse" if kept else "-g")


def test_environment_is_otherwise_unchanged() -> None:
    assert compile_environment("c++ (GCC) 12.4.0", os.environ, "amx_tile") == dict(os.environ)
