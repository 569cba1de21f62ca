from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from paddock.worker.vectors import pack

numbers = st.floats(-1e4, 1e4, width=32).filter(lambda number: number == 0 or abs(number) > 1e-4)
matrices = st.integers(1, 6).flatmap(
    lambda width: st.lists(st.lists(numbers, min_size=width, max_size=width), min_size=1, max_size=4)
)


def _packed(rows: list[list[float]], normalize: int, dimensions: int | None = None) -> npt.NDArray[np.float64]:
    data = pack(np.array(rows, np.float32), normalize=normalize, dimensions=dimensions)
    width = dimensions or len(rows[0])
    return np.frombuffer(data, "<f4").reshape(len(rows), width).astype(np.float64)


@given(matrices, st.integers(1, 64))
def test_a_normalised_row_has_length_one_and_the_same_direction(rows: list[list[float]], p: int) -> None:
    for before, after in zip(np.array(rows, np.float64), _packed(rows, p), strict=True):
        if not before.any():
            assert not after.any()
            continue
        assert np.isclose((np.abs(after) ** p).sum() ** (1 / p), 1, atol=1e-4)
        assert np.allclose(after * np.abs(before).max() / np.abs(after).max(), before, rtol=1e-4, atol=1e-2)


@given(matrices)
def test_zero_scales_to_the_range_of_int16_and_minus_one_changes_nothing(
    rows: list[list[float]],
) -> None:
    assert np.array_equal(_packed(rows, -1), np.array(rows, np.float32))
    for before, after in zip(np.array(rows), _packed(rows, 0), strict=True):
        assert np.isclose(np.abs(after).max(), 32760 if before.any() else 0)


@given(matrices, st.data())
def test_vectors_are_cut_before_they_are_normalised(rows: list[list[float]], data: st.DataObject) -> None:
    dimensions = data.draw(st.integers(1, len(rows[0])))
    assert np.array_equal(_packed(rows, 2, dimensions), _packed([row[:dimensions] for row in rows], 2))
