"""Mirostat: how many of the most likely candidates stay, so that the surprise of the text is near a target."""

from __future__ import annotations

from typing import Literal

import numpy as np

from paddock.engine.candidates import FEW, Candidates, Floats

_HEAD = 100
"""Version 1 estimates the shape of the distribution from so many of the most likely."""
_UNCERTAIN = 1e-6
"""Much more than the error of sums in another order. Nearer to a bound, only the ordered candidates decide."""


def keep_likely(candidates: Candidates, version: Literal[1, 2], surprise: float) -> None:
    """Keep the most likely candidates, ordered. `surprise`: the bound for their surprise, in bits, which mirostat
    adapts.
    """
    keep = None
    if not candidates.ordered and len(candidates.ids) > FEW:
        keep = _count_unordered(candidates, version, surprise)
    if keep is None:
        candidates.order()
        weights = candidates.probabilities()
        keep = _first(weights, len(weights), surprise)[0] if version == 1 else _within(weights, surprise)
    candidates.take_best(keep)


def _count_unordered(candidates: Candidates, version: Literal[1, 2], surprise: float) -> int | None:
    """How many stay. None: too close to decide by sums in this order."""
    weights = candidates.probabilities()
    if version == 1:
        head = np.sort(np.partition(weights, len(weights) - _HEAD)[len(weights) - _HEAD :])[::-1]
        keep, is_certain = _first(head, len(weights), surprise)
        return keep if is_certain else None
    with np.errstate(divide="ignore", invalid="ignore"):
        is_certain = bool((np.abs(-np.log2(weights) - surprise) > _UNCERTAIN).all())
    return _within(weights, surprise) if is_certain else None


def _within(weights: Floats, surprise: float) -> int:
    with np.errstate(divide="ignore"):
        return max(1, int(np.count_nonzero(-np.log2(weights) <= surprise)))


def _first(weights: Floats, size: int, surprise: float) -> tuple[int, bool]:
    """For version 1: how many of `size` candidates stay, by the first of their ordered probabilities, and whether
    slightly different ones give the same number.
    """
    top = weights[:_HEAD]
    steps = np.log(np.arange(2, len(top) + 1) / np.arange(1, len(top)))
    falls = -np.diff(np.log(np.maximum(top, 1e-30)))
    slope = float(np.sum(steps * falls) / np.sum(steps * steps)) if len(top) > 1 else 1.0
    excess = slope - 1
    # A flat row or a large target overflows, which means to keep all.
    with np.errstate(all="ignore"):
        power = excess * np.exp2(surprise) / (1 - np.float64(size) ** -excess)
        cut = float(power ** (1 / np.float64(slope)))
    is_certain = (
        bool(np.isfinite(cut)) and abs(cut - round(cut)) > _UNCERTAIN * max(cut, 1.0)
        and abs(excess) > _UNCERTAIN and slope > 0.01
    )  # fmt: skip
    return int(max(1.0, cut)) if cut < size else size, is_certain
