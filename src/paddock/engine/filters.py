"""The samplers that filter or reshape the candidates, as llama.cpp defines them.

None of them sorts the whole vocabulary, except `xtc` where other samplers than the usual temperature follow it: it
selects first, by a threshold, and orders only what can stay. What stays is ordered, except after `top_n_sigma` and
`temperature`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from paddock.engine.candidates import FEW, Candidates, Floats, Ids, Logits, buffer
from paddock.types import SamplingParams

# A lower temperature is greedy: dividing by it could overflow.
MIN_TEMPERATURE = 1e-30

Draw = Callable[[], float]
"""Gives a random number in [0, 1)."""


_NEAR, _FAR = (3.0, 6.0), 60.0
"""How far from the best to look for candidates first, and at most, in nats."""
_PARTS = 8
"""Of a nat, where the distances are counted."""
_MARGIN = 1e-9
"""More than the rounding of a sum of probabilities."""
_UNCERTAIN = 1e-4
"""More than the error of a sum of probabilities in float32: 6e-6 for logits that differ by 100."""


def top_k(candidates: Candidates, params: SamplingParams, _: Draw) -> None:
    candidates.take_best(params.top_k)


def top_p(candidates: Candidates, params: SamplingParams, _: Draw) -> None:
    if _are_many(candidates):
        probabilities = candidates.probabilities()
        out = buffer("weights", len(candidates.ids), np.float64)
        distances = np.subtract(candidates.logits.max(), candidates.logits, out=out)
        probabilities = _select(candidates, probabilities, distances, params.top_p, params.min_keep)[0]
    else:
        candidates.order()
        probabilities = candidates.probabilities()
    keep = int(np.searchsorted(probabilities.cumsum(), params.top_p)) + 1
    candidates.take(slice(max(keep, params.min_keep)))


def min_p(candidates: Candidates, params: SamplingParams, _: Draw) -> None:
    if _are_many(candidates):
        inside = _at_least(candidates, params.min_p)
        if len(inside) >= params.min_keep:
            candidates.take(inside)
            candidates.order()
            return
    candidates.order()
    least = candidates.logits[0] + math.log(params.min_p)
    keep = int(np.count_nonzero(candidates.logits >= least))
    candidates.take(slice(max(keep, params.min_keep, 1)))


def top_p_then_min_p(candidates: Candidates, params: SamplingParams, draw: Draw) -> None:
    """The same as one after the other. Both keep the most likely, and min-p usually keeps far fewer."""
    if params.min_keep > 1 or not _are_many(candidates):
        top_p(candidates, params, draw)
        min_p(candidates, params, draw)
        return
    inside = _at_least(candidates, params.min_p)
    weights = np.subtract(
        candidates.logits, candidates.logits.max(), out=buffer("weights", len(candidates.ids), np.float64)
    )
    np.exp(weights, out=weights)
    probabilities = weights[inside] / weights.sum()
    candidates.take(inside)
    probabilities = probabilities[candidates.order()]
    candidates.take(slice(int(np.searchsorted(probabilities.cumsum(), params.top_p)) + 1))


def likely_head(row: Logits, params: SamplingParams, *, with_top_p: bool) -> Candidates | None:
    """Top-p (or not) and min-p of a whole row, without a copy of it in float64. None: not applicable, or too close to
    decide by this.
    """
    if params.min_keep > 1 or len(row) <= FEW:
        return None
    best = row.max()
    least = float(best) + math.log(params.min_p)
    bound = np.float32(least)
    if float(bound) < least:
        bound = np.nextafter(bound, np.float32(np.inf))
    ids = np.flatnonzero(row >= bound)
    candidates = Candidates(ids, row[ids].astype(np.float64), ordered=False)
    candidates.order()
    if with_top_p:
        weights = np.subtract(row, best, out=buffer("row", len(row), np.float32))
        np.exp(weights, out=weights)
        shares = np.exp(candidates.logits - float(best)).cumsum() / float(weights.sum(dtype=np.float64))
        if np.abs(shares - params.top_p).min() < _UNCERTAIN:
            return None
        candidates.take(slice(int(np.searchsorted(shares, params.top_p)) + 1))
    return candidates


def typical_p(candidates: Candidates, params: SamplingParams, _: Draw) -> None:
    """Keep the tokens whose surprise is nearest to the entropy, until their probabilities add up to `typical_p`."""
    if not _are_many(candidates):
        candidates.order()
    weights = candidates.probabilities()
    with np.errstate(divide="ignore"):
        surprise = -np.log(weights)
    entropy = float(np.sum(weights * np.where(weights > 0, surprise, 0)))
    distances = np.abs(surprise - entropy)
    if not candidates.ordered:
        weights, distances = _select(candidates, weights, distances, params.typical_p, params.min_keep)
    nearest = np.argsort(distances, kind="stable")
    keep = int(np.searchsorted(weights[nearest].cumsum(), params.typical_p, side="right")) + 1
    candidates.take(np.sort(nearest[: max(keep, params.min_keep)]))


def top_n_sigma(candidates: Candidates, params: SamplingParams, _: Draw) -> None:
    finite = candidates.logits
    if not np.isfinite(finite.sum()):
        finite = finite[np.isfinite(finite)]
    if len(finite):
        candidates.take(candidates.logits >= finite.max() - params.top_n_sigma * finite.std())


def xtc(candidates: Candidates, params: SamplingParams, draw: Draw) -> None:
    """With a probability, exclude all top choices except the least likely of them."""
    if params.xtc_threshold > 0.5 or len(candidates.ids) < 2 or draw() >= params.xtc_probability:
        return
    candidates.order()
    weights = candidates.probabilities()
    above = int(np.count_nonzero((weights >= params.xtc_threshold) & (weights > 0)))
    if above > 1 and len(candidates.ids) - above + 1 >= params.min_keep:
        candidates.take(slice(above - 1, None))


def xtc_then_temperature(candidates: Candidates, params: SamplingParams, draw: Draw) -> None:
    """The same as one after the other, before a draw. Few candidates are top choices, and the rest is not ordered."""
    if not _are_many(candidates) or params.dynatemp_range > 0 or not MIN_TEMPERATURE <= params.temperature <= 1e30:
        xtc(candidates, params, draw)
    elif params.xtc_threshold <= 0.5 and draw() < params.xtc_probability:
        _exclude_top(candidates, params)
    temperature(candidates, params, draw)


def _exclude_top(candidates: Candidates, params: SamplingParams) -> None:
    weights = candidates.probabilities()
    if np.abs(weights - params.xtc_threshold).min() < _MARGIN:  # a sum in another order could decide
        candidates.order()
        weights = candidates.probabilities()
    candidates.drawn_in_order = True
    above = np.flatnonzero((weights >= params.xtc_threshold) & (weights > 0))
    if len(above) > 1 and len(weights) - len(above) + 1 >= params.min_keep:
        is_left = np.ones(len(weights), np.bool_)
        is_left[above] = False
        is_left[above[np.lexsort((candidates.ids[above], -candidates.logits[above]))[-1]]] = True
        candidates.take(is_left)


def temperature(candidates: Candidates, params: SamplingParams, _: Draw) -> None:
    temperature = params.temperature
    if params.dynatemp_range > 0 and len(candidates.ids) > 1:
        # The flatter the distribution, the higher the temperature, within the range.
        weights = candidates.probabilities()
        positive = weights[weights > 0]
        flatness = min(float(-np.sum(positive * np.log(positive))) / math.log(len(weights)), 1.0)
        low, high = max(0.0, temperature - params.dynatemp_range), temperature + params.dynatemp_range
        temperature = low + (high - low) * flatness**params.dynatemp_exponent
    if temperature < MIN_TEMPERATURE:
        candidates.take_best(1)
    else:
        candidates.logits = candidates.logits / temperature


def _are_many(candidates: Candidates) -> bool:
    return not candidates.ordered and len(candidates.ids) > FEW


def _at_least(candidates: Candidates, share: float) -> Ids:
    """The candidates with at least this share of the best one's probability."""
    logits = candidates.logits
    return np.flatnonzero(logits >= logits.max() + math.log(share))


def _select(
    candidates: Candidates, probabilities: Floats, distances: Floats, share: float, least: int
) -> tuple[Floats, Floats]:
    """Keep the nearest candidates, at least so many that their probabilities add up to more than `share`, and order
    them. Returns their probabilities and distances.
    """
    for reach in _NEAR:
        inside = np.flatnonzero(distances < reach)
        if len(inside) >= least and probabilities[inside].sum() > share + _MARGIN:
            break
    else:
        parts = (np.minimum(distances, _FAR) * _PARTS).astype(np.int64)
        sums, counts = np.bincount(parts, probabilities).cumsum(), np.bincount(parts).cumsum()
        enough = np.flatnonzero((sums > share + _MARGIN) & (counts >= least))
        inside = np.flatnonzero(parts <= (enough[0] if len(enough) else len(sums)))
    candidates.take(inside)
    probabilities, distances = probabilities[inside], distances[inside]
    positions = candidates.order()
    return probabilities[positions], distances[positions]
