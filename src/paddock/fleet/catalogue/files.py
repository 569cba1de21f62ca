"""The model files below a directory, found by name: which files form a model, and which parts are missing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

SUFFIX = ".gguf"
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
# Multimodal projectors: they let the models beside them read images or sound.
_PROJECTOR = "mmproj"
_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file's size and modification time. Either changes with the content."""

    path: str
    size: int = 0
    written: int = 0
    """Modification time in nanoseconds."""

    @classmethod
    def stat(cls, path: Path) -> ModelFile:
        """A broken link has size 0; reading it fails later, with the reason."""
        try:
            status = path.stat()
        except OSError:
            return cls(str(path))
        return cls(str(path), status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class FoundModel:
    """The files of one model."""

    relative_path: str
    """The path below the directory, without suffix and part number."""
    files: tuple[ModelFile, ...]
    projectors: tuple[str, ...] = ()
    known_problem: str = ""
    """Why the files are incomplete."""

    @property
    def name(self) -> str:
        return PurePosixPath(self.relative_path).name

    @property
    def identity(self) -> str:
        """The resolved path: the same for every link to the file."""
        return os.path.realpath(self.files[0].path)


def is_projector(name: str) -> bool:
    return _PROJECTOR in PurePosixPath(name).name.lower()


def without_part(name: str) -> str:
    """A file's name without suffix and part number: the same for all files of a model."""
    match = _PART.fullmatch(name)
    return match["stem"] if match else name.removesuffix(SUFFIX)


def all_parts(name: str) -> list[str]:
    """The names of all files of the model that a file belongs to."""
    match = _PART.fullmatch(name)
    if match is None:
        return [name]
    count = int(match["count"])
    return [f"{match['stem']}-{number:05}-of-{count:05}{SUFFIX}" for number in range(1, count + 1)]


def find_models(directory: Path) -> tuple[list[FoundModel], list[str]]:
    """Every model below the directory, those nearest to the top first, and notes for the operator.

    Follows links. Each name of a file is a model of its own, also if another name links to the same file. A folder
    is read once, however many links lead to it. Skips hidden files and folders.
    """
    notes: list[str] = []
    top = os.path.realpath(directory)

    def rank(model: FoundModel) -> tuple[bool, int, str]:
        """Real paths before links, then by depth."""
        own = os.path.join(top, os.path.relpath(model.files[0].path, directory))
        return model.identity != own, model.relative_path.count("/"), model.relative_path

    found = [model for folder in _folders(directory, notes) for model in _in_folder(directory, folder, notes)]
    return sorted(found, key=rank), notes


def scan_files(directory: Path) -> frozenset[tuple[str, int, int]]:
    """Every model file below the directory with its size and modification time, to detect changes."""
    return frozenset(
        (file.path, file.size, file.written)
        for folder in _folders(directory, [])
        for path in folder.glob(f"*{SUFFIX}")
        if not path.name.startswith(".")
        for file in [ModelFile.stat(path)]
    )


def model_at(path: Path) -> FoundModel:
    """The model that a file belongs to, with all its parts."""
    path = path.absolute()
    match = _PART.fullmatch(path.name)
    if match is None:
        return FoundModel(without_part(path.name), (ModelFile.stat(path),))
    names = all_parts(path.name)
    count = len(names)
    present = [name for name in names if os.path.lexists(path.with_name(name))] or [path.name]
    found = set(present)
    missing = [str(number) for number, name in enumerate(names, 1) if name not in found]
    which = ", ".join(missing) if len(missing) <= _MOST_NAMED else f"{missing[0]} and {len(missing) - 1} others"
    problem = f"{len(missing)} of its {count} parts are missing: {which}" if missing else ""
    files = tuple(ModelFile.stat(path.with_name(name)) for name in present)
    return FoundModel(match["stem"], files, known_problem=problem)


def with_projectors(found: FoundModel) -> FoundModel:
    """The same with the projectors beside it."""
    folder = Path(found.files[0].path).parent
    try:
        names = sorted(path for path in folder.glob(f"*{SUFFIX}") if is_projector(path.name))
    except OSError:
        return found
    return replace(found, projectors=tuple(map(str, names)))


def _folders(directory: Path, notes: list[str]) -> Iterator[Path]:
    """Each folder once. Linked folders come last, so that real paths are seen first."""
    seen: set[tuple[int, int]] = set()
    real, linked = [directory], list[Path]()
    while real or linked:
        folder = real.pop() if real else linked.pop(0)
        try:
            status = folder.stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            inside = sorted(entry for entry in folder.iterdir() if not entry.name.startswith(".") and entry.is_dir())
        except OSError as error:
            notes.append(f"cannot read the folder {folder}: {error.strerror}")
            continue
        yield folder
        real.extend(entry for entry in inside if not entry.is_symlink())
        linked.extend(entry for entry in inside if entry.is_symlink())


def _in_folder(directory: Path, folder: Path, notes: list[str]) -> Iterator[FoundModel]:
    names = (path for path in sorted(folder.glob(f"*{SUFFIX}")) if not path.name.startswith("."))
    files = [path for path in names if not os.path.isdir(path)]  # unlike Path.is_dir it never raises
    projectors = tuple(str(path) for path in files if is_projector(path.name))
    models = {found.relative_path: found for path in files if str(path) not in projectors for found in [model_at(path)]}
    if projectors and not models:
        notes.append(f"{projectors[0]} is a projector without a model beside it")
    for model in models.values():
        relative_path = (folder.relative_to(directory) / model.relative_path).as_posix()
        yield FoundModel(relative_path, model.files, projectors, model.known_problem)
