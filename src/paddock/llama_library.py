"""Where libllama may be, and what its file is. Nothing is loaded here, so both sides may use it.

The API for commands that install or build a library:

- `find_library()` is the file that workers use; `candidates()` are all, the preferred one first, each with its origin.
- `llama_builds.py` knows the libraries that `paddock build` made, and which of them can be used here.
- `paddock.fleet.process.native.ask_build(path)` loads a library in a process of its own, runs the self-test, and
  returns its version, commit and CPU features, or `failure`: one line that says why it cannot be used.
- `PACKAGE` is the package on the Python index with a library that is known to work.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from paddock.elf import MACHINES, read_elf
from paddock.llama_builds import usable_builds

VARIABLE = "PADDOCK_LIBLLAMA"
"""A file, or a folder that has one."""
BUILT, PREBUILT = "paddock build", "xllamacpp"
"""Origins."""
VARIABLES = (VARIABLE, "LLAMA_CPP_LIB_PATH")  # the second one is llama-cpp-python's
PACKAGE = "xllamacpp==2026.9.11063"

_NAMES = {"darwin": "libllama.dylib", "win32": "llama.dll"}
_MODULES = "*.pyd" if sys.platform == "win32" else "*.so"
_FOLDERS = (
    "/usr/local/lib", "/usr/local/lib64", "/usr/lib", "/usr/lib64", f"/usr/lib/{platform.machine()}-linux-gnu",
    "/opt/homebrew/lib", "/home/linuxbrew/.linuxbrew/lib",
)  # fmt: skip

_OTHER_FORMATS = {
    b"MZ": "for Windows",
    b"\xcf\xfa\xed\xfe": "for macOS",
    b"\xca\xfe\xba\xbe": "for macOS",
    b"!<arch>": "a static library (.a)",
}


@dataclass(frozen=True, slots=True)
class Found:
    path: Path
    origin: str
    """What put it there, for people."""


def library_name() -> str:
    """The file name on this system."""
    return _NAMES.get(sys.platform, "libllama.so")


def install_hint() -> str:
    """How to get a library that works."""
    return f"pip install {PACKAGE}, or `paddock build`, or name the file of another library in {VARIABLE}"


def find_library(environment: Mapping[str, str] = os.environ) -> Found | None:
    """The library that workers use. It may be unusable: only loading it shows that."""
    return next(candidates(environment), None)


def candidates(environment: Mapping[str, str] = os.environ) -> Iterator[Found]:
    """All libraries that exist, the preferred one first. A file that a variable names need not exist."""
    for variable in VARIABLES:
        if named := environment.get(variable):
            path = Path(named).expanduser().absolute()
            yield Found(path / library_name() if path.is_dir() else path, variable)
            return  # nothing else was asked for
    for folder in usable_builds(environment):
        yield from _in_folder(folder, BUILT)
    for folder in _packages("llama_cpp"):
        yield from _in_folder(folder / "lib", "llama-cpp-python")
    for folder in _packages("xllamacpp"):
        yield from (Found(path, PREBUILT) for path in sorted(folder.glob(_MODULES)))
    prefixes = (environment.get("CONDA_PREFIX", ""), *environment.get("NIX_PROFILES", "").split())
    folders = [Path(prefix) / "lib" for prefix in prefixes if prefix]
    folders += [Path(folder) for folder in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    for folder in dict.fromkeys(path.absolute() for path in (*folders, *map(Path, _FOLDERS))):
        yield from _in_folder(folder, "the system")


def file_problem(path: Path) -> str | None:
    """Why this file cannot be a library for this machine, by its first bytes. The loader's own messages are wrong or
    unclear: it says of a library for another CPU that it does not exist.
    """
    try:
        with path.open("rb") as file:
            start, size = file.read(8), os.fstat(file.fileno()).st_size
        found = read_elf(path)
    except FileNotFoundError:
        return "there is no such file"
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    if not sys.platform.startswith("linux"):
        return None
    if found is not None:
        here = platform.machine()
        if here in MACHINES.values() and found.machine != here:
            return f"it is for another CPU ({found.machine}, this one is {here})"
        # Loading it would end the process with SIGBUS.
        return f"it is incomplete ({size:,} of at least {found.size:,} bytes)" if size < found.size else None
    return f"it is {next((what for magic, what in _OTHER_FORMATS.items() if start.startswith(magic)), 'no library')}"


def readable_paths(found: Found, home: Path) -> list[Path]:
    """What a worker must be able to read: the library's folder, because libggml and its backends are beside it. From a
    folder that also has the user's files, only the libraries themselves. Of what `paddock build` made, all builds: the
    worker searches again when it loads the library, and would use another one if it could not list them.
    """
    folders = {found.path.parent.resolve(), found.path.resolve().parent}
    if found.origin == BUILT:
        folders = {found.path.parent.parent.resolve()}
    paths: list[Path] = []
    for folder in sorted(folders):
        is_private = home.resolve().is_relative_to(folder)
        paths += sorted(path.resolve() for path in folder.glob("lib*") if path.is_file()) if is_private else [folder]
    return paths


def _in_folder(folder: Path, origin: str) -> Iterator[Found]:
    # Packages of distributions have the first name only in the part for developers.
    for name in (library_name(), f"{library_name()}.0"):
        if (folder / name).exists():
            yield Found(folder / name, origin)
            return


def _packages(name: str) -> list[Path]:
    """The folders of an installed package, which is not imported."""
    spec = importlib.util.find_spec(name)
    return [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec is not None else []
