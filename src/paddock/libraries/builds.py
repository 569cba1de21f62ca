"""The libraries that `paddock build` compiled: where they are, and which of them can be used on this machine.

`search.py` uses it, and `cli/native/` adds builds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from paddock.libraries.cpu import Cpu, this_cpu

IDENTITY = "build.json"
"""The file in the folder of a build. A folder without it is no build."""


class Source(msgspec.Struct, frozen=True):
    """A package on the Python index that contains llama.cpp's source."""

    name: str
    version: str
    sha256: str
    """Of its source package."""

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


PINNED = Source("llama-cpp-python", "0.3.36", "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e")
"""What `paddock build` compiles. Its structs are known to `engine/libllama`."""


class Identity(msgspec.Struct, frozen=True):
    """How a library was built."""

    source: Source
    backends: tuple[str, ...]
    """GPU backends, such as cuda."""
    flags: tuple[str, ...]
    """Of CMake."""
    compiler: str
    cpu: Cpu
    built_at: float
    features: tuple[str, ...] = ()
    """Instruction sets that the library uses, by ggml's names."""


@dataclass(frozen=True, slots=True)
class Build:
    folder: Path
    identity: Identity | None
    problem: str | None
    """Why it is not used on this machine."""


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of `paddock build`: builds, the log, and what was measured."""
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paddock" / "libllama"


def list_builds(folder: Path, cpu: Cpu, source: Source = PINNED) -> list[Build]:
    """All builds in the cache folder, the latest first."""
    found = list(_read(folder / "builds", cpu, source))
    return sorted(found, key=lambda build: build.identity.built_at if build.identity else 0.0, reverse=True)


def usable_builds(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """The folders of builds that can be used here, the latest first."""
    folder = cache_folder(environment)
    if not (folder / "builds").is_dir():
        return []
    return [build.folder for build in list_builds(folder, this_cpu()) if build.problem is None]


def _read(folder: Path, cpu: Cpu, source: Source) -> Iterator[Build]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        try:
            identity = msgspec.json.decode((folder / name / IDENTITY).read_bytes(), type=Identity)
        except (OSError, msgspec.MsgspecError) as error:
            yield Build(folder / name, None, f"its {IDENTITY} cannot be read: {error}")
        else:
            yield Build(folder / name, identity, mismatch(identity, cpu, source))


def mismatch(identity: Identity, cpu: Cpu, source: Source = PINNED) -> str | None:
    """Why this build cannot be used on this CPU by this version of Paddock, or None."""
    if identity.source != source:
        return f"it was built from {identity.source}, and this version of Paddock uses {source}"
    built_for = identity.cpu
    if built_for.machine != cpu.machine:
        return f"it was built for {built_for.machine}, and this machine is {cpu.machine}"
    if built_for.features and cpu.features:
        missing = [name for name in built_for.features if name not in cpu.features]
        return f"it was built for another CPU: this one does not have {', '.join(missing)}" if missing else None
    if built_for.model != cpu.model:
        return f"it was built for another CPU ({built_for.model}), and this one is {cpu.model}"
    return None
