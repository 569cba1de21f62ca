"""Names that were made over the API: a model with a system prompt, a template, messages and parameters of its own.

They are kept in one file of the data folder, which is read again when it changes: several servers and
`paddock import` may write it. The configuration file is the operator's, and no request changes it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec
import structlog

from paddock.errors import Unavailable

_log = structlog.get_logger(__name__)
FILE: Final = "ollama.json"
_MOST: Final = 16 << 20
"""Bytes."""


class Created(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One name."""

    base: str = msgspec.field(name="from")
    """The name of a model of the catalogue."""
    system: str = ""
    template: str = ""
    """A Jinja template; empty: the model's own."""
    parameters: dict[str, Any] = {}
    """Ollama's options."""
    messages: list[dict[str, Any]] = []
    license: str = ""
    modified: float = 0.0
    """Unix time."""
    files: list[str] = []
    """The files that a pull downloaded for it."""


class _Content(msgspec.Struct):
    models: dict[str, Created] = {}


_Stamp = tuple[int, int, int]


class CreatedModels:
    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._stamp: _Stamp | None = None
        self._models: Mapping[str, Created] = MappingProxyType({})

    def all(self) -> Mapping[str, Created]:
        """By name. A file that cannot be read has none, and is not overwritten."""
        stamp = self._stamp_now()
        if stamp != self._stamp:
            try:
                self._models = MappingProxyType(self._read())
            except (OSError, ValueError) as error:
                _log.error("names made over Ollama's API cannot be read", file=str(self._path), error=str(error))
                self._models = MappingProxyType({})
            self._stamp = stamp
        return self._models

    def change(self, change: Callable[[dict[str, Created]], None]) -> None:
        """Let `change` edit the names, and write them. Raises `Unavailable` if they cannot be read or written."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._path.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                models = self._read()
                change(models)
                content = msgspec.json.format(msgspec.json.encode(_Content(models)), indent=2)
                temporary = self._path.with_suffix(".part")
                with temporary.open("wb") as file:
                    file.write(content + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(self._path)
        except OSError as error:
            raise Unavailable(f"cannot write {self._path}: {error.strerror or error}") from None
        except ValueError as error:
            raise Unavailable(f"cannot read {self._path}: {error}") from None

    def _read(self) -> dict[str, Created]:
        try:
            with self._path.open("rb") as file:
                data = file.read(_MOST + 1)
        except FileNotFoundError:
            return {}
        if len(data) > _MOST:
            raise ValueError(f"it has more than {_MOST} bytes")
        return msgspec.json.decode(data, type=_Content).models

    def _stamp_now(self) -> _Stamp | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns
