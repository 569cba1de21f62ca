"""Where libllama may be: the file that workers use, and what they must be able to read."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from paddock.libraries.builds import usable_builds

VARIABLE = "PADDOCK_LIBLLAMA"
"""A file, or a folder that has one."""
BUILT, PREBUILT = "paddock build", "xllamacpp"
"""Origins."""
VARIABLES = (VARIABLE, "LLAMA_CPP_LIB_PATH")  # the second one is llama-cpp-python's
PACKAGE = "xllamacpp==2026.9.11063"
"""The package on the Python index with a library that is known to work."""

_NAMES = {"darwin": "libllama.dylib", "win32": "llama.dll"}
_MODULES = "*.pyd" if sys.platform == "win32" else "*.so"
_FOLDERS = (
    "/usr/local/lib", "/usr/local/lib64", "/usr/lib", "/usr/lib64", f"/usr/lib/{platform.machine()}-linux-gnu",
    "/opt/homebrew/lib", "/home/linuxbrew/.linuxbrew/lib",
)  # fmt: skip


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
