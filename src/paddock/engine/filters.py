"""The samplers that filter or reshape the candidates, as llama.cpp defines them.

A new sampler is a function here, an entry in `FILTERS`, its name and parameters in `types/sampling.py`, and its request
field in `gateway/generation/sampling_fields.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from paddock.engine.candidates import Candidates
from paddock.types import SamplingParams

# A lower temperature is greedy: dividing by it could overflow.
MIN_TEMPERATURE = 1e-30

Draw = Callable[[], float]
"""Gives a random number in [0, 1)."""


class Filter(NamedTuple):
    apply: Callable[[Candidates, SamplingParams, Draw], None]
    is_active: Callable[[SamplingParams], bool]
    """Whether these parameters change anything."""
    keeps_best: bool = True
    """Whether the most likely token always stays."""


def top_k(candidates: Candidates, params: SamplingParams, _: Draw) -> None:
    candidates.order()
    candidates.take(slice(params.top_k))


def top_p(candidates: Candidates, params: SamplingParams, _: Draw) -> None:
    candidates.order()
    keep = int(np.searchsorted(candidates.probabilities().cumsum(), params.top_p)) + 1
    candidates.take(slice(max(keep, params.min_keep)))


def min_p(candidates: Candidates, params: SamplingParams, _: Draw) -> None:
    candidates.order()
    least = candidates.logits[0] + math.log(params.min_p)
    keep = int(np.count_nonzero(candidates.logits >= least))
    candidates.take(slice(max(keep, params.min_keep, 1)))


def typical_p(candidates: Candidates, params: SamplingParams, _: Draw) -> None:
    """Keep the tokens whose surprise is nearest to the entropy, until their probabilities add up to `typical_p`."""
    candidates.order()
    weights = candidates.probabilities()
    with np.errstate(divide="ignore"):
        surprise = -np.log(weights)
    entropy = float(np.sum(weights * np.where(weights > 0, surprise, 0)))
    nearest = np.argsort(np.abs(surprise - entropy), kind="stable")
    keep = int(np.searchsorted(weights[nearest].cumsum(), params.typical_p, side="right")) + 1
    candidates.take(np.sort(nearest[: max(keep, params.min_keep)]))


def top_n_sigma(candidates: Candidates, params: SamplingParams, _: Draw) -> None:
    finite = candidates.logits[np.isfinite(candidates.logits)]
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


def temperature(candidates: Candidates, params: SamplingParams, _: Draw) -> None:
    temperature = params.temperature
    if params.dynatemp_range > 0 and len(candidates.ids) > 1:
        # The flatter the distribution, the higher the temperature, within the range.
        weights = candidates.probabilities()
        positive = weights[weights > 0]
        flatness = float(-np.sum(positive * np.log(positive))) / math.log(len(weights))
        low, high = max(0.0, temperature - params.dynatemp_range), temperature + params.dynatemp_range
        temperature = low + (high - low) * flatness**params.dynatemp_exponent
    if temperature < MIN_TEMPERATURE:
        candidates.order()
        candidates.take(slice(1))
    else:
        candidates.logits = candidates.logits / temperature


FILTERS = {
    "top_k": Filter(top_k, lambda params: params.top_k > 0),
    "top_p": Filter(top_p, lambda params: params.top_p < 1),
    "min_p": Filter(min_p, lambda params: params.min_p > 0),
    "typ_p": Filter(typical_p, lambda params: params.typical_p < 1, keeps_best=False),
    "top_n_sigma": Filter(top_n_sigma, lambda params: params.top_n_sigma > 0),
    "xtc": Filter(xtc, lambda params: params.xtc_probability > 0, keeps_best=False),
    "temperature": Filter(temperature, lambda params: True),
}
