"""The programs that a build needs. CMake and Ninja come from the Python index if they are missing."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import venv
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from paddock.errors import StartupError

Backend = str
BACKENDS: Mapping[Backend, str] = {
    "cuda": "GGML_CUDA", "vulkan": "GGML_VULKAN", "metal": "GGML_METAL", "rocm": "GGML_HIP",
}  # fmt: skip
"""CMake's options."""
_WHEELS = {"cmake": "cmake>=3.28,<5", "ninja": "ninja>=1.11,<2"}
_CXX, _CC = ("c++", "g++", "clang++"), ("cc", "gcc", "clang")
_INSTALL_COMPILER = (
    "install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install) or name "
    "it in CXX"
)
# The programs of a backend, one of which must exist, where they may be beside PATH, and where they come from.
_TOOLKITS: Mapping[Backend, tuple[str, tuple[str, ...], str]] = {
    "cuda": ("nvcc", ("/usr/local/cuda/bin", "/opt/cuda/bin"), "the CUDA toolkit"),
    "vulkan": ("glslc", (), "the Vulkan SDK (Debian, Ubuntu: apt install libvulkan-dev glslc)"),
    "rocm": ("hipconfig", ("/opt/rocm/bin",), "ROCm with its HIP compiler"),
}
_GRACE = 10.0


@dataclass(frozen=True, slots=True)
class Tools:
    cmake: str | None
    """None: to be installed for this build."""
    ninja: str | None
    compiler: str
    """The C++ compiler with its version, for people."""

    @property
    def missing(self) -> list[str]:
        return [name for name, found in (("cmake", self.cmake), ("ninja", self.ninja)) if found is None]


class Runner:
    """Runs programs with their output in a log. If it is interrupted, the program ends with everything it started."""

    def __init__(self, log: IO[str], environment: Mapping[str, str] | None = None) -> None:
        self._log, self._environment = log, dict(environment if environment is not None else os.environ)
        self._last: deque[str] = deque(maxlen=40)

    def with_environment(self, environment: Mapping[str, str]) -> Runner:
        return Runner(self._log, environment)

    def __call__(self, command: Sequence[str], on_line: Callable[[str], None] = lambda line: None) -> int:
        self._log.write(f"$ {' '.join(command)}\n")
        self._last.clear()
        try:
            process = subprocess.Popen(
                command, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._last.append(f"{command[0]}: {error.strerror}")
            return 127
        try:
            assert process.stdout is not None
            for line in process.stdout:
                self._log.write(line)
                self._log.flush()
                self._last.append(line.rstrip())
                on_line(line)
            return process.wait()
        finally:
            _end(process)

    def last_error(self) -> str:
        """The line that says most about a failure, of the last program."""
        lines = [line for line in self._last if line]
        for index, line in enumerate(lines):
            if line.startswith("CMake Error"):  # the reason is in the lines below
                return " ".join(part.strip() for part in lines[index : index + 3])
        telling = [line for line in lines if re.search(r"error|fatal|cannot|no such", line, re.IGNORECASE)]
        return (telling or lines or ["it gave no reason"])[0 if telling else -1].strip()


def find_tools(backends: Sequence[Backend], environment: Mapping[str, str] = os.environ) -> Tools:
    """Raises `StartupError` if something is missing that Paddock cannot install."""
    path = environment.get("PATH", os.defpath)
    compiler = _which(environment.get("CXX", "").split()[:1] or _CXX, path)
    if compiler is None:
        named = f" ({environment['CXX']}, from CXX, does not exist)" if environment.get("CXX") else ""
        raise StartupError(f"a C++ compiler is missing{named}: {_INSTALL_COMPILER}")
    if _which(environment.get("CC", "").split()[:1] or _CC, path) is None:
        raise StartupError("a C compiler is missing: install one, or name it in CC")
    for backend in backends:
        if backend == "metal" and sys.platform != "darwin":
            raise StartupError("--metal needs macOS")
        if backend in _TOOLKITS:
            program, folders, origin = _TOOLKITS[backend]
            if _which([program], os.pathsep.join((path, *folders))) is None:
                raise StartupError(f"--{backend} needs {origin}: {program} is not on PATH")
    return Tools(_which(["cmake"], path), _which(["ninja", "ninja-build"], path), _version(compiler))


def install_tools(tools: Tools, folder: Path, run: Runner) -> Tools:
    """Install what is missing into an environment in this folder."""
    if not tools.missing:
        return tools
    python = _environment_in(folder)
    status = run([*pip(folder, run), "--python", str(python), "install", *(_WHEELS[name] for name in tools.missing)])
    installed = {name: str(python.with_name(name)) for name in tools.missing if python.with_name(name).exists()}
    cmake, ninja = tools.cmake or installed.get("cmake"), tools.ninja or installed.get("ninja")
    if status != 0 or cmake is None:
        names = " and ".join(tools.missing)
        raise StartupError(f"{names} cannot be installed from the Python index: {run.last_error()}; install {names}")
    return Tools(cmake, ninja, tools.compiler)


def pip(folder: Path, run: Runner) -> list[str]:
    """The command of pip. An environment made by another installer may not have it; then it gets its own."""
    options = ["--no-input", "--disable-pip-version-check"]
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", *options]
    python = _environment_in(folder)
    if run([str(python), "-m", "ensurepip", "--default-pip"]) != 0:
        raise StartupError(
            "pip is missing, and this Python cannot install it (Debian, Ubuntu: apt install python3-venv)"
        )
    return [str(python), "-m", "pip", *options]


def compile_environment(compiler: str, environment: Mapping[str, str], cpuinfo: str) -> dict[str, str]:
    """GCC before 11.5, 12.4 and 13.3 drops the stores that set up AMX tiles (GCC bug 114098): llama.cpp then dies of
    SIGILL on its first prompt. Keeping "dead" stores cures it and costs nothing measurable.
    """
    changed = dict(environment)
    if "amx_tile" in cpuinfo and drops_tile_setup(compiler):
        changed["CXXFLAGS"] = f"{environment.get('CXXFLAGS', '')} -fno-tree-dse -fno-dse".strip()
    return changed


def drops_tile_setup(compiler: str) -> bool:
    """`compiler` is the first line of its `--version`."""
    match = re.search(r"(\d+)\.(\d+)\.\d+", compiler)
    if "clang" in compiler.lower() or match is None:
        return False
    major, minor = int(match[1]), int(match[2])
    return (major, minor) < {11: (11, 5), 12: (12, 4), 13: (13, 3)}.get(major, (11, 5))


def _environment_in(folder: Path) -> Path:
    """The Python of an environment without packages."""
    place = folder / "tools"
    if not place.exists():
        venv.create(place, symlinks=True)
    return place / "bin" / "python"


def _which(names: Sequence[str], path: str) -> str | None:
    return next((found for name in names if (found := shutil.which(name, path=path))), None)


def _version(compiler: str) -> str:
    try:
        shown = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return compiler
    return next(iter(shown.splitlines()), compiler)


def _end(process: subprocess.Popen[str]) -> None:
    """End the program and its children, if they still run."""
    if process.stdout is not None:
        process.stdout.close()
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
