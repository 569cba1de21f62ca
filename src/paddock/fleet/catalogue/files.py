"""The model files below a directory, by their names alone: which belong together, and which are missing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

SUFFIX = ".gguf"
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
# Files that give eyes or ears to the models beside them.
_PROJECTOR = "mmproj"
_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file as it was when it was looked at: another size or time means another content."""

    path: str
    size: int = 0
    written: int = 0
    """In nanoseconds, as the file system tells it."""

    @classmethod
    def look(cls, path: Path) -> ModelFile:
        """A link that leads nowhere is a file of no size: reading it will say why."""
        try:
            status = path.stat()
        except OSError:
            return cls(str(path))
        return cls(str(path), status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class Found:
    """The files of one model."""

    place: str
    """Below the directory, without suffix and number of the part."""
    files: tuple[ModelFile, ...]
    projectors: tuple[str, ...] = ()
    trouble: str = ""
    """Why these are not all that the model needs."""

    @property
    def name(self) -> str:
        return PurePosixPath(self.place).name

    @property
    def identity(self) -> str:
        """The same for the same file, whatever links lead to it."""
        return os.path.realpath(self.files[0].path)


def is_projector(name: str) -> bool:
    return _PROJECTOR in PurePosixPath(name).name.lower()


def without_part(name: str) -> str:
    """A file's name without its suffix and the number of a part: the same for all files of a model."""
    match = _PART.fullmatch(name)
    return match["stem"] if match else name.removesuffix(SUFFIX)


def find_models(directory: Path) -> tuple[list[Found], list[str]]:
    """Every model below the directory, those nearest to its top first, and what an operator should know besides.

    Links are followed, but nothing is found twice: a file's own place counts before any link to it. What is hidden
    (a name that begins with a dot) is not looked at.
    """
    found: dict[str, Found] = {}
    notes: list[str] = []
    top = os.path.realpath(directory)

    def rank(model: Found) -> tuple[bool, int, str]:
        """Own places before links, the top before the depths."""
        own = os.path.join(top, os.path.relpath(model.files[0].path, directory))
        return model.identity != own, model.place.count("/"), model.place

    for folder in _folders(directory, notes):
        for model in _in_folder(directory, folder, notes):
            known = found.get(model.identity)
            if known is None or rank(model) < rank(known):
                found[model.identity] = model
    return sorted(found.values(), key=rank), notes


def look_at_files(directory: Path) -> frozenset[tuple[str, int, int]]:
    """Every model file below the directory with its size and time: the same as long as nothing changes there."""
    return frozenset(
        (file.path, file.size, file.written)
        for folder in _folders(directory, [])
        for path in folder.glob(f"*{SUFFIX}")
        if not path.name.startswith(".")
        for file in [ModelFile.look(path)]
    )


def gather(path: Path) -> Found:
    """One model by the name of its file, or of any part of it."""
    path = path.absolute()
    match = _PART.fullmatch(path.name)
    if match is None:
        return Found(without_part(path.name), (ModelFile.look(path),))
    count = int(match["count"])
    names = [f"{match['stem']}-{number:05}-of-{count:05}{SUFFIX}" for number in range(1, count + 1)]
    present = [name for name in names if os.path.lexists(path.with_name(name))] or [path.name]
    there = set(present)
    missing = [str(number) for number, name in enumerate(names, 1) if name not in there]
    which = ", ".join(missing) if len(missing) <= _MOST_NAMED else f"{missing[0]} and {len(missing) - 1} others"
    trouble = f"of its {count} parts there is no {which}" if missing else ""
    return Found(match["stem"], tuple(ModelFile.look(path.with_name(name)) for name in present), trouble=trouble)


def _folders(directory: Path, notes: list[str]) -> Iterator[Path]:
    """Each folder once. Those that links lead to come after all others, so that real places are seen first."""
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
            notes.append(f"cannot look into {folder}: {error.strerror}")
            continue
        yield folder
        real.extend(entry for entry in inside if not entry.is_symlink())
        linked.extend(entry for entry in inside if entry.is_symlink())


def _in_folder(directory: Path, folder: Path, notes: list[str]) -> Iterator[Found]:
    names = (path for path in sorted(folder.glob(f"*{SUFFIX}")) if not path.name.startswith("."))
    files = [path for path in names if not os.path.isdir(path)]  # unlike Path.is_dir it takes what it may not look at
    projectors = tuple(str(path) for path in files if is_projector(path.name))
    models = {found.place: found for path in files if str(path) not in projectors for found in [gather(path)]}
    if projectors and not models:
        notes.append(f"{projectors[0]} belongs to a model, but there is none beside it")
    for model in models.values():
        place = (folder.relative_to(directory) / model.place).as_posix()
        yield Found(place, model.files, projectors, model.trouble)
