"""Runs CMake: only libllama, ggml and libmtmd are compiled, no program of llama.cpp."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from paddock.cli.native.tools import BACKENDS, Backend, Runner, Tools
from paddock.errors import StartupError

_TARGETS = ("llama", "mtmd")
# Ninja counts files, make counts percent.
_FILES, _PERCENT = re.compile(r"^\[(\d+)/(\d+)\]"), re.compile(r"^\[\s*(\d+)%\]")
_OFF = (
    "LLAMA_BUILD_COMMON", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_TOOLS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_SERVER",
    "LLAMA_BUILD_APP", "LLAMA_OPENSSL", "MTMD_VIDEO",
)  # fmt: skip
_LIBRARIES = ("*.dylib",) if sys.platform == "darwin" else ("*.so", "*.so.*")


def flags(backends: Sequence[Backend]) -> list[str]:
    """The options of CMake that say what is built."""
    return [
        "-DCMAKE_BUILD_TYPE=Release",
        "-DBUILD_SHARED_LIBS=ON",
        "-DGGML_NATIVE=ON",
        "-DGGML_RPC=ON",
        "-DLLAMA_BUILD_MTMD=ON",
        *(f"-D{BACKENDS[backend]}=ON" for backend in backends),
        *(f"-D{name}=OFF" for name in _OFF),
    ]


def configure(source: Path, folder: Path, options: Sequence[str], tools: Tools, run: Runner) -> None:
    # The libraries find each other by their own folder, which is moved when all is done.
    here = "@loader_path" if sys.platform == "darwin" else "$ORIGIN"
    paths = ["-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON", f"-DCMAKE_INSTALL_RPATH={here}"]
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools.ninja}"] if tools.ninja else []
    assert tools.cmake is not None
    status = run([tools.cmake, "-S", str(source), "-B", str(folder), *generator, *options, *paths])
    if status != 0:
        raise StartupError(f"cmake cannot configure llama.cpp: {run.last_error()}")


def compile_libraries(folder: Path, tools: Tools, jobs: int, run: Runner, on_percent: Callable[[int], None]) -> None:
    shown = -1

    def read(line: str) -> None:
        nonlocal shown
        percent = progress(line)
        if percent is not None and percent > shown:
            shown = percent
            on_percent(percent)

    assert tools.cmake is not None
    status = run([tools.cmake, "--build", str(folder), "--target", *_TARGETS, "--parallel", str(jobs)], read)
    if status != 0:
        raise StartupError(f"llama.cpp cannot be compiled: {run.last_error()}")


def progress(line: str) -> int | None:
    """The percentage in a line of Ninja or make."""
    if match := _FILES.match(line):
        return 100 * int(match[1]) // max(int(match[2]), 1)
    return int(match[1]) if (match := _PERCENT.match(line)) else None


def collect(folder: Path, result: Path) -> None:
    """Copy the libraries, with the links between their names."""
    result.mkdir()
    found = sorted({path for pattern in _LIBRARIES for path in (folder / "bin").glob(pattern)})
    for path in found:
        shutil.copy2(path, result / path.name, follow_symlinks=False)
    if not found:
        raise StartupError("cmake reported success, but there is no library in its folder")
