"""What was measured, and how Paddock compares with the best of its peers."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Better(StrEnum):
    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"
    """Shown to explain the others; no ratio is made of it."""


@dataclass(frozen=True)
class Measure:
    name: str
    unit: str
    better: Better
    value: float


@dataclass
class Row:
    scenario: str
    name: str
    unit: str
    better: Better
    values: dict[str, dict[int, float]] = field(default_factory=dict)
    """By server, then by round; a failed round is missing."""

    def median(self, server: str) -> float | None:
        rounds = self.values.get(server)
        return statistics.median(rounds.values()) if rounds else None

    def best(self, servers: Iterable[str]) -> str | None:
        medians = {name: median for name in servers if (median := self.median(name)) is not None}
        if not medians or self.better is Better.NEITHER:
            return None
        return (max if self.better is Better.HIGHER else min)(medians, key=medians.__getitem__)


@dataclass(frozen=True)
class Comparison:
    peer: str
    ratio: float
    lowest: float
    highest: float


class Table:
    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], Row] = {}

    @property
    def rows(self) -> list[Row]:
        return list(self._rows.values())

    def add(self, scenario: str, server: str, round_number: int, measures: Iterable[Measure]) -> None:
        for measure in measures:
            key = scenario, measure.name
            row = self._rows.setdefault(key, Row(scenario, measure.name, measure.unit, measure.better))
            row.values.setdefault(server, {})[round_number] = measure.value


def ratio(better: Better, paddock: float, peer: float) -> float | None:
    """Above 1 where Paddock is the better one, whichever direction that is; None where the numbers make no ratio."""
    if better is Better.NEITHER or paddock <= 0 or peer <= 0:
        return None
    return paddock / peer if better is Better.HIGHER else peer / paddock


def compare(row: Row, paddock: str, peers: Sequence[str]) -> Comparison | None:
    """Against the peer whose median is best; the range is of the rounds that both completed."""
    peer = row.best(peers)
    ours, theirs = row.median(paddock), row.median(peer) if peer else None
    if peer is None or ours is None or theirs is None:
        return None
    both = row.values[paddock].keys() & row.values[peer].keys()
    rounds = [
        found
        for number in both
        if (found := ratio(row.better, row.values[paddock][number], row.values[peer][number])) is not None
    ]
    overall = ratio(row.better, ours, theirs)
    if overall is None or not rounds:
        return None
    return Comparison(peer, overall, min(rounds), max(rounds))


def summary(rows: Iterable[Row], paddocks: Sequence[str], peers: Sequence[str]) -> str:
    heads = ["scenario", "metric", "unit", *paddocks, *peers]
    heads += ["ratio (min..max), best peer" if len(paddocks) == 1 else f"{name}: ratio, best peer" for name in paddocks]
    lines = [heads]
    for row in rows:
        medians = [_number(row.median(name)) for name in (*paddocks, *peers)]
        ratios = [_comparison(compare(row, name, peers)) for name in paddocks]
        lines.append([row.scenario, row.name, row.unit, *medians, *ratios])
    return _aligned(lines, right=range(3, 3 + len(paddocks) + len(peers)))


def as_json(rows: Iterable[Row]) -> list[dict[str, Any]]:
    return [
        {"scenario": row.scenario, "metric": row.name, "unit": row.unit, "better": row.better, "values": row.values}
        for row in rows
    ]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3f}"


def _comparison(found: Comparison | None) -> str:
    return f"{found.ratio:5.2f} ({found.lowest:.2f}..{found.highest:.2f}) {found.peer}" if found else "    -"


def _aligned(lines: Sequence[Sequence[str]], right: range) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
