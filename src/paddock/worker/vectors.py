"""Cuts vectors to the requested dimensions, normalises them, and packs them for the wire."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

EUCLIDEAN = 2
UNCHANGED = -1
_LARGEST = 0
_INT16_RANGE = 32760  # the largest number is scaled to this, as in llama-server


def pack(vectors: npt.NDArray[np.float32], *, normalize: int, dimensions: int | None) -> bytes:
    """The rows one after another, float32 and little-endian. A row of zeros stays unchanged."""
    rows = vectors[:, :dimensions].astype(np.float64)
    if normalize != UNCHANGED:
        sizes = _sizes(np.abs(rows), normalize)
        rows /= np.where(sizes > 0, sizes, 1)
    return rows.astype("<f4").tobytes()


def _sizes(absolute: npt.NDArray[np.float64], normalize: int) -> npt.NDArray[np.float64]:
    largest: npt.NDArray[np.float64] = absolute.max(axis=1, keepdims=True)
    if normalize == _LARGEST:
        return largest / _INT16_RANGE
    # Relative to the largest number, so that no power overflows.
    parts = (absolute / np.where(largest > 0, largest, 1)) ** normalize
    lengths: npt.NDArray[np.float64] = largest * parts.sum(axis=1, keepdims=True) ** (1 / normalize)
    return lengths
