"""Vectors as a request wants them: cut to its dimensions, normalised, and packed for the wire."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

EUCLIDEAN = 2
_AS_THEY_ARE = -1
_LARGEST = 0
_INT16_RANGE = 32760  # what the largest number becomes, as llama-server has it


def pack(vectors: npt.NDArray[np.float32], *, normalize: int, dimensions: int | None) -> bytes:
    """The rows one after another, float32 and little-endian. A row of zeros has no direction and stays as it is."""
    rows = vectors[:, :dimensions].astype(np.float64)
    if normalize != _AS_THEY_ARE:
        sizes = _sizes(np.abs(rows), normalize)
        rows /= np.where(sizes > 0, sizes, 1)
    return rows.astype("<f4").tobytes()


def _sizes(absolute: npt.NDArray[np.float64], normalize: int) -> npt.NDArray[np.float64]:
    largest: npt.NDArray[np.float64] = absolute.max(axis=1, keepdims=True)
    if normalize == _LARGEST:
        return largest / _INT16_RANGE
    # Measured against the largest, so that no power of it overflows.
    parts = (absolute / np.where(largest > 0, largest, 1)) ** normalize
    lengths: npt.NDArray[np.float64] = largest * parts.sum(axis=1, keepdims=True) ** (1 / normalize)
    return lengths
