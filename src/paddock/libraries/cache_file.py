"""Small files in the user's cache. Losing one costs only the time to compute it again."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")


def read_cached(path: Path, kind: type[T]) -> T | None:
    """None: there is no such file, or it has another content."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def write_cached(path: Path, content: object) -> None:
    """Several servers may do so at once: the last one wins. What cannot be written is not cached."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(msgspec.json.encode(content))
        os.replace(file.name, path)
    except OSError:
        pass
