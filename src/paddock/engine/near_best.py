"""Top-p and min-p without top-k, for several rows at once: nothing of a row is sorted or exponentiated as a whole."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paddock.engine.candidates import LARGEST, Floats, Ids, Logits, buffer, found_by_row, group_maxima, sort_keys
from paddock.types import SamplingParams

_GROUPS = 64
_REACH = 9.0
"""How far from the best to look for candidates without min-p, in nats. A top-p of 0.95 is mostly within this."""
_MANY = 2048
"""Rows in which more groups than this have candidates are rare, and sampled on their own."""
_UNCERTAIN = 1e-4
"""More than the relative error of a sum of weights in float32."""
_SAFE = 60.0
"""The exponential of such a logit, times the size of a vocabulary, does not overflow in float32."""


class Limits(NamedTuple):
    """Which tokens of each row stay. One column, as many rows as requests."""

    distance: Floats
    """From the best logit, as a summand: at most 0."""
    top_p: Floats
    """More than 1: off."""
    is_exact: npt.NDArray[np.bool_]
    """All tokens within the distance stay, unless top-p removes them. Otherwise the distance is a guess."""


def limits_of(params: list[SamplingParams]) -> Limits:
    """For parameters with top-p or min-p."""
    return Limits(
        np.array([[math.log(p.min_p) if p.min_p > 0 else -_REACH] for p in params]),
        np.array([[p.top_p if p.top_p < 1 else 2.0] for p in params]),
        np.array([[p.min_p > 0] for p in params]),
    )


class NearBest(NamedTuple):
    ids: Ids
    """One row per request, most likely first, ties by id."""
    logits: Floats
    kept: Ids
    """How many of them stay; 0: this could not be decided here."""


def near_best(rows: Logits, which: list[int], limits: Limits) -> NearBest:
    """The candidates of these rows after top-p and min-p.

    One pass finds the maxima of groups of tokens. Only groups that reach the least logit are searched. The maxima also
    bound the sum of all weights, which top-p needs, and mostly that is enough.
    """
    count, width = len(which), rows.shape[1]
    groups = _GROUPS if width >= 16 * _GROUPS else 1
    columns = width // groups
    largest = group_maxima(rows, which, groups)
    tail = rows[which, columns * groups :]
    best = largest.max(axis=1, keepdims=True)
    if tail.size:
        best = np.maximum(best, tail.max(axis=1, keepdims=True))
    least = _rounded_up(best.astype(np.float64) + limits.distance)
    reached = largest >= least
    valid = (np.abs(best[:, 0]) <= LARGEST) & (np.count_nonzero(reached, axis=1) <= _MANY)  # neither inf nor NaN
    reached &= valid[:, None]

    owner, column = np.nonzero(reached)
    grid = rows[:, : columns * groups].reshape(len(rows), groups, columns)
    near = grid[np.asarray(which)[owner], :, column]
    hits = np.flatnonzero(near >= least[owner])
    at, line = np.divmod(hits, groups)
    keys = sort_keys(owner[at], near.reshape(-1)[hits], line * columns + column[at])
    if tail.size:
        row, rest = np.nonzero((tail >= least) & valid[:, None])
        keys = np.concatenate([keys, sort_keys(row, tail[row, rest], rest + columns * groups)])
    ids, found = found_by_row(np.sort(keys), count)
    logits = rows[np.asarray(which)[:, None], ids].astype(np.float64)
    logits[np.arange(ids.shape[1]) >= found[:, None]] = -np.inf

    kept = found
    if (limits.top_p <= 1).any():
        shares = np.exp(logits - best).cumsum(axis=1)
        inside = np.exp(tail - best).sum(axis=1, dtype=np.float64)
        inside += np.bincount(owner, np.exp(near - best[owner]).sum(axis=1, dtype=np.float64), count)
        outside = np.where(reached, np.float32(0), np.exp(largest - best)).sum(axis=1, dtype=np.float64)
        low, high = inside + outside, inside + groups * outside
        kept = _cut(shares, found, limits, low, high)
        unsure = np.flatnonzero((kept == 0) & valid)
        if len(unsure):
            low[unsure] = high[unsure] = [_total(rows[which[index]], float(best[index, 0])) for index in unsure]
            kept = _cut(shares, found, limits, low, high)
    return NearBest(ids, logits, np.where(valid, kept, 0))


def _cut(shares: Floats, found: Ids, limits: Limits, low: Floats, high: Floats) -> Ids:
    """How many candidates top-p keeps, for weights that add up to between `low` and `high`. 0: it depends on that."""
    top_p = limits.top_p[:, 0]
    fewest = 1 + np.count_nonzero(shares < (top_p * low * (1 - _UNCERTAIN))[:, None], axis=1)
    most = 1 + np.count_nonzero(shares < (top_p * high * (1 + _UNCERTAIN))[:, None], axis=1)
    exact = limits.is_exact[:, 0]
    fewest, most = np.where(exact, (np.minimum(fewest, found), np.minimum(most, found)), (fewest, most))
    return np.where(top_p > 1, found, np.where((fewest == most) & (most <= found), most, 0))


def _total(row: Logits, best: float) -> float:
    """The sum of all weights, where the best is 1."""
    weights = buffer("row", len(row), np.float32)
    if abs(best) < _SAFE:
        return float(np.exp(row, out=weights).sum()) * math.exp(-best)
    return float(np.exp(np.subtract(row, np.float32(best), out=weights), out=weights).sum())


def _rounded_up(values: Floats) -> Logits:
    """The smallest float32 that is not below the value."""
    rounded = values.astype(np.float32)
    return np.where(rounded.astype(np.float64) < values, np.nextafter(rounded, np.float32(np.inf)), rounded)
