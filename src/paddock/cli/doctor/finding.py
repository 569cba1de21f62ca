"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    about: str
    text: str
    cure: str = ""
    """How to solve the problem. With `ok`: an optional change."""
