"""The result of a check, and a check that several modules use."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    about: str
    text: str
    cure: str = ""
    """How to solve the problem. With `ok`: an optional change."""


def check_folder(folder: Path, what: str, about: str, *, writable: bool = False) -> Finding:
    if not folder.is_dir():
        cure = f"create it (mkdir -p {folder}), mount its disk, or correct the setting"
        return Finding("problem", about, f"{what} {folder} does not exist", cure)
    if not os.access(folder, os.X_OK | (os.W_OK if writable else os.R_OK)):
        text = f"this user cannot {'write to' if writable else 'read'} {what} {folder}"
        return Finding("problem", about, text, f"give the server's user access: chown USER {folder}")
    return Finding("ok", about, f"{what} is {folder}")
