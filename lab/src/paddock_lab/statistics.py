"""Medians with bootstrap intervals. The seed is fixed, so that the same values give the same intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_RESAMPLES = 4000
_SEED = 7
_CONFIDENCE = 0.95
_FEWEST = 5
"""With fewer values the interval is not shown."""
_AT_A_TIME = 4_000_000
"""Values drawn at once, to limit memory."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float
    count: int
    """Number of measurements; of two samples, the smaller number."""

    @property
    def enough(self) -> bool:
        return self.count >= _FEWEST


def percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(_floats(values), percent))


def median(values: Sequence[float]) -> Estimate:
    """The median with its interval."""
    return quantile(values, 50)


def quantile(values: Sequence[float], percent: float) -> Estimate:
    """A percentile with its interval."""
    return _estimate(percentile(values, percent), _resampled(values, percent, _SEED), len(values))


def ratio_of_medians(values: Sequence[float], base: Sequence[float]) -> Estimate:
    """The first median divided by the other one. All values must be positive."""
    above, below = _floats(values), _floats(base)
    if above.min() <= 0 or below.min() <= 0:
        raise ValueError("a ratio needs positive values")
    ratios = _resampled(values, 50, _SEED) / _resampled(base, 50, _SEED + 1)
    return _estimate(float(np.median(above) / np.median(below)), ratios, min(len(values), len(base)))


def in_words(ratio: Estimate, times: str = "as long") -> str:
    """For example `2.10 times as long (95 % interval 1.92 to 2.43)`, or that no difference is shown."""
    interval = f"95 % interval {number(ratio.low)} to {number(ratio.high)}"
    if not ratio.enough:
        return f"{number(ratio.value)} times {times}, but {ratio.count} of each are too few for an interval"
    if ratio.low <= 1 <= ratio.high:
        return f"{number(ratio.value)} times {times} ({interval}; that includes 1: no difference shown)"
    return f"{number(ratio.value)} times {times} ({interval})"


def number(value: float) -> str:
    """With at least three significant digits."""
    if value == 0 or not np.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - int(np.floor(np.log10(abs(value)))))
    return f"{value:.{digits}f}" if digits < 6 else f"{value:.2e}"


def _resampled(values: Sequence[float], percent: float, seed: int) -> Floats:
    """The percentile of each of many random samples of these values."""
    source, draw = _floats(values), np.random.default_rng(seed).choice
    rows = max(1, _AT_A_TIME // len(values))
    samples = [min(rows, _RESAMPLES - begun) for begun in range(0, _RESAMPLES, rows)]
    return np.concatenate([np.percentile(draw(source, (count, len(values))), percent, axis=1) for count in samples])


def _estimate(value: float, resampled: Floats, count: int) -> Estimate:
    outside = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(resampled, [outside, 1 - outside])
    return Estimate(value, float(low), float(high), count)


def _floats(values: Sequence[float]) -> Floats:
    if not values:
        raise ValueError("nothing was measured")
    return np.asarray(values, np.float64)
