"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    about: str
    text: str
    cure: str = ""
    """How to solve the problem. With `ok`: an optional change."""


def size(value: int) -> str:
    number, unit = float(value), 0
    while number >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.{0 if unit == 0 or number >= 100 else 1}f} {_UNITS[unit]}"
