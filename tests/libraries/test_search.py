"""Where libllama is looked for, and what its file is."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import platform
import struct
import sys
from pathlib import Path

import msgspec
import pytest

from paddock.libraries import (
    IDENTITY,
    PINNED,
    Found,
    Identity,
    cache_folder,
    candidates,
    file_problem,
    find_library,
    library_name,
    search,
    this_cpu,
)
from paddock.libraries import readable_paths as readable

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="libraries have another format here")


def elf_start(machine: int) -> bytes:
    """The start of a 64-bit ELF file for this machine."""
    return struct.pack("<4sBBB9xHH", b"\x7fELF", 2, 1, 1, 3, machine) + bytes(44)


def _touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """An existing library in each place."""

    def find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(tmp_path / name)]
        return spec if (tmp_path / name).exists() else None

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    monkeypatch.setattr(search, "_FOLDERS", (str(tmp_path / "usr"),))
    build = cache_folder({"XDG_CACHE_HOME": str(tmp_path / "cache")}) / "builds" / "one"
    build.mkdir(parents=True)
    (build / IDENTITY).write_bytes(msgspec.json.encode(Identity(PINNED, (), (), "c++ 12.2", this_cpu(), 1.0)))
    return {
        "paddock build": _touch(build / library_name()),
        "llama-cpp-python": _touch(tmp_path / "llama_cpp" / "lib" / library_name()),
        "xllamacpp": _touch(tmp_path / "xllamacpp" / "xllamacpp.abi3.so"),
        "the system": _touch(tmp_path / "usr" / library_name()),
    }


def test_the_order_of_places(tmp_path: Path, places: dict[str, Path]) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    found = list(candidates(environment))
    assert [(each.origin, each.path) for each in found] == list(places.items())
    for path in places.values():
        assert find_library(environment) == Found(path, next(name for name, at in places.items() if at == path))
        path.unlink()


def test_conda_and_nix_come_before_the_folders_of_the_system(tmp_path: Path, places: dict[str, Path]) -> None:
    conda, nix = (_touch(tmp_path / name / "lib" / library_name()) for name in ("conda", "nix"))
    environment = {"XDG_CACHE_HOME": "/none", "CONDA_PREFIX": str(tmp_path / "conda")}
    environment["NIX_PROFILES"] = f"/none {tmp_path / 'nix'}"
    linked = _touch(tmp_path / "linked" / f"{library_name()}.0")
    environment["LD_LIBRARY_PATH"] = f"{tmp_path / 'linked'}:{tmp_path / 'usr'}"
    found = [each.path for each in candidates(environment) if each.origin == "the system"]
    assert found == [conda, nix, linked, places["the system"]]


@pytest.mark.parametrize("variable", ["PADDOCK_LIBLLAMA", "LLAMA_CPP_LIB_PATH"])
def test_a_named_library_is_the_only_candidate(variable: str, tmp_path: Path, places: dict[str, Path]) -> None:
    folder = tmp_path / "mine"
    library = _touch(folder / library_name())
    for named in (folder, library):
        assert list(candidates({variable: str(named)})) == [Found(library, variable)]
    missing = tmp_path / "none.so"
    assert list(candidates({variable: str(missing)})) == [Found(missing, variable)]
    assert file_problem(missing) == "there is no such file"


def test_no_library(tmp_path: Path, places: dict[str, Path]) -> None:
    for path in places.values():
        path.unlink()
    assert find_library({"XDG_CACHE_HOME": str(tmp_path / "cache")}) is None


@LINUX
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it is no library"),
        (b"a text", "it is no library"),
        (b"\x7fELF", "it is no library"),
        (b"MZ\x90\0" + bytes(60), "it is for Windows"),
        (b"\xcf\xfa\xed\xfe" + bytes(60), "it is for macOS"),
        (b"!<arch>\n" + bytes(60), "it is a static library (.a)"),
        (elf_start(258), f"it is for another CPU (loongarch64, this one is {platform.machine()})"),
        (elf_start(9999), f"it is for another CPU (machine 9999, this one is {platform.machine()})"),
    ],
)
def test_a_file_that_is_no_library_for_this_machine(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "libllama.so"
    path.write_bytes(content)
    assert file_problem(path) == problem


@LINUX
def test_files_that_may_be_libraries(tmp_path: Path) -> None:
    here = {"x86_64": 62, "aarch64": 183}.get(platform.machine())
    path = tmp_path / "libllama.so"
    if here is not None:
        path.write_bytes(elf_start(here))
        assert file_problem(path) is None
        cut = bytearray(elf_start(here))
        cut[40:48], cut[58:62] = struct.pack("<Q", 5000), struct.pack("<HH", 64, 10)
        path.write_bytes(cut)
        assert file_problem(path) == "it is incomplete (64 of at least 5,640 bytes)"
    assert file_problem(tmp_path) == "it cannot be read (Is a directory)"


def test_a_worker_reads_the_folder_of_the_library_but_not_the_home_folder(tmp_path: Path) -> None:
    home = tmp_path / "home"
    secret, library, ggml = (_touch(home / name) for name in ("notes.txt", "libllama.so", "libggml.so.0"))
    assert readable(Found(library, ""), home) == [ggml, library]
    assert secret not in readable(Found(library, ""), home)
    built = _touch(home / "build" / "libllama.so")
    assert readable(Found(built, ""), home) == [built.parent]
    link = tmp_path / "lib" / "libllama.so"
    link.parent.mkdir()
    link.symlink_to(built)
    assert readable(Found(link, ""), home) == [built.parent, link.parent]
