"""The results of a run: sentences, tables and charts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paddock_lab.statistics import Estimate, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = str | int | float | Estimate | None
"""None: unknown."""


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]
    note: str = ""

    def spread(self) -> Iterator[list[str | int | float | None]]:
        """The header and the rows as plain values. An estimate becomes three columns: value, low and high."""
        wide = [any(isinstance(row[at], Estimate) for row in self.rows) for at in range(len(self.columns))]
        head: list[str | int | float | None] = []
        for name, estimated in zip(self.columns, wide, strict=True):
            head += [name, f"{name} low", f"{name} high"] if estimated else [name]
        yield head
        for row in self.rows:
            values: list[str | int | float | None] = []
            for cell, estimated in zip(row, wide, strict=True):
                if isinstance(cell, Estimate):
                    values += [cell.value, cell.low, cell.high]
                else:
                    values += [cell, None, None] if estimated else [cell]
            yield values


@dataclass(frozen=True)
class Picture:
    name: str
    """The file name without `.png`."""
    title: str
    draw: Callable[[Figure], None]


@dataclass
class Findings:
    summary: list[str] = field(default_factory=list)
    """The most important results."""
    tables: list[Table] = field(default_factory=list)
    """The first one is also `summary.csv`."""
    pictures: list[Picture] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Reasons to distrust a number."""


def shown(cell: Cell) -> str:
    match cell:
        case None:
            return "-"
        case Estimate(enough=False):
            return f"{number(cell.value)} (of {cell.count})"
        case Estimate():
            return f"{number(cell.value)} ({number(cell.low)} to {number(cell.high)})"
        case float():
            return number(cell)
        case _:
            return str(cell)
