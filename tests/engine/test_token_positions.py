"""The table of token positions against a list of all tokens with their positions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.token_positions import TokenPositions
from paddock.errors import DecodeFailed
from tests.tiers import examples


class Cell(NamedTuple):
    position: int
    column: int
    row: int
    is_first: bool = True
    """The sequence can be cut before it."""


Cells = list[Cell]


def following(cells: Cells) -> int:
    """The position of the next token of text."""
    return max((max(cell[:3]) for cell in cells), default=-1) + 1


def with_text(cells: Cells, count: int) -> Cells:
    return [*cells, *(Cell(at, at, at) for at in range(following(cells), following(cells) + count))]


def with_image(cells: Cells, rows: int, columns: int) -> Cells:
    at = following(cells)
    grid = [(row, column) for row in range(rows) for column in range(columns)]
    return [*cells, *(Cell(at, at + column, at + row, (row, column) == (0, 0)) for row, column in grid)]


def cuts(cells: Cells) -> list[int]:
    return [index for index, cell in enumerate(cells) if cell.is_first] + [len(cells)]


def check(table: TokenPositions, sequence: int, cells: Cells) -> None:
    """A sequence that ends with a part of an image has it as an image."""
    places = cuts(cells)
    for index, cell in enumerate(cells):
        assert table.position(sequence, index) == cell.position
        assert table.floor(sequence, index) == max(place for place in places if place <= index)
        assert table.ceiling(sequence, index) == min(place for place in places if place >= index)
    assert table.position(sequence, len(cells)) == following(cells)
    assert table.shifts.get(sequence, 0) == len(cells) - following(cells)


Parts = st.lists(st.one_of(st.integers(1, 5), st.tuples(st.integers(1, 5), st.integers(1, 5))), max_size=6)
"""Text of so many tokens, and images of rows and columns."""


def compute(table: TokenPositions, sequence: int, cells: Cells, parts: list[int | tuple[int, int]]) -> Cells:
    for part in parts:
        if isinstance(part, int):
            cells = with_text(cells, part)
        else:
            table.add(sequence, len(cells), len(cells) + part[0] * part[1], max(part))
            cells = with_image(cells, *part)
    return cells


def rows(cells: Cells) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    return np.array([(cell.position, cell.column, cell.row, 1) for cell in cells], np.int32)


@examples(100)
@given(data=st.data())
def test_computed_cut_forked_and_restored(data: st.DataObject) -> None:
    table = TokenPositions()
    sequences: list[Cells] = [[], [], []]
    for _ in range(data.draw(st.integers(1, 6))):
        sequence = data.draw(st.integers(0, 2))
        cells = sequences[sequence]
        match data.draw(st.sampled_from(["compute", "cut", "fork", "restore"])):
            case "compute":
                cells = compute(table, sequence, cells, data.draw(Parts))
            case "cut":
                kept = data.draw(st.integers(0, len(cells)))
                table.forget(sequence, kept)
                cells = cells[: max(place for place in cuts(cells) if place <= kept)]
            case "fork":
                source = data.draw(st.integers(0, 2))
                length = data.draw(st.sampled_from(cuts(sequences[source])))
                table.fork(source, sequence, length)
                cells = sequences[source][:length]
            case "restore":
                cells = compute(TokenPositions(), 0, [], data.draw(Parts))
                at = 0
                for end in sorted({*data.draw(st.lists(st.integers(0, len(cells)), max_size=4)), len(cells)} - {0}):
                    table.restore(sequence, at, cells[at - 1].position if at else -1, rows(cells[at:end]))
                    at = end
                if not cells:
                    table.forget(sequence, 0)
        sequences[sequence] = cells
        for other in range(3):
            check(table, other, sequences[other])
    for sequence in range(3):
        table.forget(sequence, 0)
    assert table.shifts == {}


def test_tokens_of_another_place_are_refused() -> None:
    """Those that continue an image of which the sequence has nothing, or text behind a gap."""
    table = TokenPositions()
    cells = with_text(with_image(with_text([], 3), 2, 3), 4)
    for start in (1, 4, 5, 8, 10):
        for first in range(len(cells)):
            if cells[first].position not in (start, start - 1):
                with pytest.raises(DecodeFailed, match="cannot continue"):
                    table.restore(0, start, start - 1, rows(cells[first:]))
    assert table.shifts == {}
