"""The axes of charts, and their position on the page."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from paddock_lab.report import Findings, Picture, Table
from paddock_lab.report.page import About, render
from paddock_lab.report.pictures import lines, shares, write


def _x_labels(figure: Figure) -> list[str]:
    figure.canvas.draw()
    (axes,) = figure.axes
    low, high = sorted(axes.get_xlim())
    ticks = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
    return [label.get_text() for value, label in ticks if low <= value <= high]


@pytest.mark.parametrize("clients", [(1, 2), (1, 4, 8, 32), (1, 2, 3)])
def test_an_axis_of_clients_has_ticks_at_the_measured_values(clients: tuple[int, ...]) -> None:
    figure = Figure()
    lines({"a": [(count, count) for count in clients]}, "concurrent clients", "tokens/s", marked=True)(figure)
    assert _x_labels(figure) == [str(count) for count in clients]


def test_axes_of_counts_have_integer_ticks() -> None:
    figure = Figure()
    shares({"alone": (1, 0), "loaded": (0, 1)}, ("the same", "different"))(figure)
    assert all("." not in label for label in _x_labels(figure))


def test_charts_come_before_tables(tmp_path: Path) -> None:
    picture = Picture("one", "Over the load", lines({"a": [(1, 1)]}, "x", "y"))
    found = Findings(["A result."], [Table("Numbers", ("x",), [(1,)])], [picture], ["A note."])
    about = About("Title", "A question?", "today", "paddock bench", {}, partial=False)
    html = render(about, found, [(picture.title, write(picture, tmp_path))])
    places = [html.index(part) for part in ("A result.", "<img", "A note.", "Numbers", "Command")]
    assert places == sorted(places)
    HTMLParser().feed(html)
