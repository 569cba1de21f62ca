"""The draw among candidates that are to be drawn from in order, without ordering all of them."""

from __future__ import annotations

import numpy as np

from paddock.engine.candidates import Candidates, Floats

_FAR, _PARTS = 60.0, 8
"""Candidates are counted by their distance from the best: up to so many nats, in so many parts of each."""
_MARGIN = 1e-9
"""More than the rounding of a sum of probabilities, relative to it."""


def draw_ordered(candidates: Candidates, weights: Floats, uniform: float) -> int | None:
    """The place of the candidate that `uniform` chooses if the most likely come first, ties by id. None: too close to
    decide by sums in this order.
    """
    distances = np.minimum(candidates.logits.max() - candidates.logits, _FAR)
    parts = (distances * _PARTS).astype(np.int64)
    sums = np.bincount(parts, weights).cumsum()
    point, margin = uniform * sums[-1], _MARGIN * sums[-1]
    part = int(np.searchsorted(sums, point, side="right"))
    inside = np.flatnonzero(parts == part)
    inside = inside[np.lexsort((candidates.ids[inside], -candidates.logits[inside]))]
    before = sums[part - 1] if part else 0.0
    ends = before + weights[inside].cumsum()
    at = int(np.searchsorted(ends, point, side="right"))
    if at == len(inside):
        return None
    start = ends[at - 1] if at else before
    return int(inside[at]) if start + margin < point < ends[at] - margin else None
