"""What a directory holds, by model and tenant, and how it is cleared. For the command line."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import msgspec

from paddock.disk_cache import account, folders, span_file
from paddock.disk_cache.folders import Found
from paddock.disk_cache.keys import tenant_of
from paddock.disk_cache.span_file import UnusableFile
from paddock.disk_cache.writing import ModelFile
from paddock.types import StateOrigin

_MAX_MODEL_FILE = 1 << 16


@dataclass(slots=True, frozen=True)
class Kept:
    """What is kept for one tenant of one state key."""

    key: str
    """The name of the folder."""
    model: str | None
    """The path of the model's file. None: unknown."""
    origin: StateOrigin | None
    tenant: str | None
    """None: no file could be read."""
    files: int
    tokens: int
    bytes: int
    used_at: float
    """The time of day of the last use."""


def kept(directory: str) -> list[Kept]:
    """By model and tenant. Files that are being written are left out."""
    rows: dict[tuple[str, str | None], list[Found]] = {}
    models: dict[str, ModelFile | None] = {}
    for key, tenant, files in _groups(directory):
        rows.setdefault((key, tenant), []).extend(files)
        if key not in models:
            models[key] = _model_of(directory, key)
    return [_row(key, models[key], tenant, files) for (key, tenant), files in rows.items()]


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """The name of each model's file, or its path where other files have the same name."""
    paths = set(paths)
    count = Counter(map(os.path.basename, paths))
    return {path: name if count[name := os.path.basename(path)] == 1 else path for path in paths}


def clear(directory: str, *, models: Collection[str] | None = None, tenant: str | None = None) -> tuple[int, int]:
    """Remove everything, or what is kept for the models with these paths and a tenant. A process that uses the cache
    finds the files missing and computes them again. Returns the number of files and of bytes. Raises `OSError`.
    """
    chosen: list[Found] = []
    for key, owner, files in _groups(directory):
        if tenant is not None and owner != tenant:
            continue
        if models is not None and ((found := _model_of(directory, key)) is None or found.model not in models):
            continue
        chosen += files
    if not chosen:
        return 0, 0
    with account.locked(directory) as used:
        removed = [size for file in chosen if (size := account.remove(directory, file)) is not None]
        used.count()
    return len(removed), sum(removed)


def _row(key: str, model: ModelFile | None, tenant: str | None, files: list[Found]) -> Kept:
    return Kept(
        key,
        None if model is None else model.model,
        None if model is None else model.origin,
        tenant,
        len(files),
        sum(file.end - file.start for file in files),
        sum(file.size for file in files),
        max(file.used_at for file in files) / 1e9,
    )


def _groups(directory: str) -> Iterator[tuple[str, str | None, list[Found]]]:
    """The spans of each namespace, with its state key and tenant."""
    spans = (file for file in folders.files(directory) if not file.temporary)
    for (key, namespace), group in groupby(spans, lambda file: (file.key, file.namespace)):
        files = list(group)
        yield key, _tenant(directory, key, namespace, files), files


def _tenant(directory: str, key: str, namespace: str, files: list[Found]) -> str | None:
    for file in files:
        try:
            with (
                folders.folder(directory, key, namespace) as place,
                folders.opened(file.name, place) as (descriptor, status),
            ):
                return tenant_of(span_file.read_header(descriptor, status.st_size).entry.namespace)
        except (OSError, UnusableFile):
            continue
    return None


def _model_of(directory: str, key: str) -> ModelFile | None:
    try:
        with folders.folder(directory, key) as place, folders.opened(folders.MODEL_FILE, place) as (descriptor, _):
            return msgspec.json.decode(os.pread(descriptor, _MAX_MODEL_FILE, 0), type=ModelFile)
    except (OSError, msgspec.MsgspecError):
        return None
