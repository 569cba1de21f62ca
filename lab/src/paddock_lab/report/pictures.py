"""The kinds of charts in reports. Each draws into its own figure without a display."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from paddock_lab.report.findings import Picture
from paddock_lab.statistics import number

# matplotlib is imported where it is used, so that `--help` is fast.
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#1f6f8b", "#d1702a", "#4c8f4a", "#8a5aa8", "#b8434a", "#6b6b6b")
_WIDE = 8
"""An axis is logarithmic if the largest value is more than this multiple of the smallest."""

Draw = Callable[["Figure"], None]
Side = Literal["x", "y"]


def write(picture: Picture, folder: Path) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained", facecolor="white")
    picture.draw(figure)
    path = folder / f"{picture.name}.png"
    figure.savefig(path, dpi=130)
    return path


def distributions(samples: Mapping[tuple[str, str], Sequence[float]], label: str) -> Draw:
    """Every value as a dot, with median and quartiles; rows by the first name, colours by the second."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        figure.set_size_inches(8, 1.6 + 0.55 * len(samples))
        kinds = list(dict.fromkeys(kind for _, kind in samples))
        jitter = random.Random(1)
        for row, ((_, kind), values) in enumerate(samples.items()):
            colour = _COLOURS[kinds.index(kind) % len(_COLOURS)]
            axes.scatter(
                values, [row + jitter.uniform(-0.16, 0.16) for _ in values], s=14, color=colour, alpha=0.55, lw=0
            )
            axes.boxplot(
                [list(values)], positions=[row], orientation="horizontal", widths=0.55, showfliers=False,
                boxprops={"color": colour}, medianprops={"color": "black", "linewidth": 2},
                whiskerprops={"color": colour}, capprops={"color": colour}, manage_ticks=False,
            )  # fmt: skip
        axes.set_yticks(range(len(samples)), [f"{name}  {kind}" for name, kind in samples])
        axes.set_ylim(len(samples) - 0.5, -0.5)
        axes.set_xlabel(label)
        _scale(axes, "x", [value for values in samples.values() for value in values])
        _plain(axes, "x")

    return draw


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]], x_label: str, y_label: str, *, marked: bool = False
) -> Draw:
    """One line per series, over time or over a varied parameter, whose values are then `marked` on the axis."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for place, (name, points) in enumerate(series.items()):
            axes.plot(
                [x for x, _ in points], [y for _, y in points], marker="o", markersize=4, linewidth=1,
                color=_COLOURS[place % len(_COLOURS)], label=name,
            )  # fmt: skip
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        _scale(axes, "y", [y for points in series.values() for _, y in points])
        _plain(axes, "y")
        if marked:
            _mark(axes, sorted({x for points in series.values() for x, _ in points}))
        figure.legend(loc="outside upper center", ncols=3, frameon=False)

    return draw


def timelines(streams: Mapping[str, Sequence[float]]) -> Draw:
    """The arrival time of every token of some streams as a mark, and the longest stall as a bar."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        figure.set_size_inches(8, 1.6 + 0.7 * len(streams))
        for row, times in enumerate(streams.values()):
            axes.vlines(times, row - 0.3, row + 0.3, color=_COLOURS[0], linewidth=0.8)
            before, after = max(pairwise(times), key=lambda gap: gap[1] - gap[0], default=(0.0, 0.0))
            axes.barh(row, after - before, left=before, height=0.3, color="#b8434a", alpha=0.6)
            axes.text((before + after) / 2, row - 0.34, f"{number(after - before)} s", ha="center", va="bottom")
        axes.set_yticks(range(len(streams)), list(streams))
        axes.set_ylim(len(streams) - 0.5, -0.7)
        axes.set_xlim(0, None)
        axes.set_xlabel("seconds since the request")
        _plain(axes, "x")

    return draw


def shares(rows: Mapping[str, tuple[int, int]], labels: tuple[str, str]) -> Draw:
    """Two stacked counts per row."""

    def draw(figure: Figure) -> None:
        from matplotlib.ticker import MaxNLocator

        axes = figure.subplots()
        figure.set_size_inches(8, 1.6 + 0.45 * len(rows))
        names, places = list(rows), range(len(rows))
        left = [counts[0] for counts in rows.values()]
        right = [counts[1] for counts in rows.values()]
        axes.barh(places, left, color="#4c8f4a", label=labels[0])
        axes.barh(places, right, left=left, color="#b8434a", label=labels[1])
        axes.set_yticks(places, names)
        axes.invert_yaxis()
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _plain(axes, "x")
        figure.legend(loc="outside upper center", ncols=2, frameon=False)

    return draw


def _scale(axes: Axes, which: Side, values: Sequence[float]) -> None:
    """From zero, or logarithmic if the values differ too much."""
    from matplotlib.ticker import LogLocator, NullFormatter

    if max(values) <= _WIDE * min(values):
        axes.set(**{f"{which}lim": (0, None)})
        return
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _mark(axes: Axes, values: Sequence[float]) -> None:
    """Ticks at the measured values only."""
    from matplotlib.ticker import NullFormatter, NullLocator

    if values[0] > 0 and values[-1] > _WIDE * values[0]:
        axes.set_xscale("log", base=2)
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())


def _plain(axes: Axes, grid: Side) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis=grid, alpha=0.25)
    axes.set_axisbelow(True)
