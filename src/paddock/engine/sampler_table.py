"""The table of all samplers.

A new sampler is a function in `filters.py` or `penalties.py`, an entry here, its name and parameters in
`types/sampling.py`, and its request field in `gateway/generation/sampling_fields.py`. A request for which it is active
is sampled by `sampler.py` alone, unless `is_batched` says that `batch_sampler.py` applies it too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from paddock.engine import filters
from paddock.engine.candidates import Candidates
from paddock.engine.filters import Draw
from paddock.engine.penalties import Penalty, RepeatPenalty, SequencePenalty
from paddock.types import SamplerName, SamplingParams

FilterFunction = Callable[[Candidates, SamplingParams, Draw], None]


class Entry(NamedTuple):
    is_active: Callable[[SamplingParams], bool]
    """Whether these parameters change anything."""
    filter: FilterFunction | None = None
    penalty: Callable[[SamplingParams], Penalty] | None = None
    """Penalties before all filters are applied to all rows of a step at once, without an entry for the batch."""
    keeps_best: bool = True
    """Whether the most likely token always stays."""
    is_batched: bool = False
    """Whether `batch_sampler.py` has this filter."""


SAMPLERS: dict[SamplerName, Entry] = {
    "penalties": Entry(RepeatPenalty.is_active, penalty=RepeatPenalty.of),
    "dry": Entry(SequencePenalty.is_active, penalty=SequencePenalty.of),
    "top_n_sigma": Entry(lambda params: params.top_n_sigma > 0, filters.top_n_sigma),
    "top_k": Entry(lambda params: params.top_k > 0, filters.top_k, is_batched=True),
    "typ_p": Entry(lambda params: params.typical_p < 1, filters.typical_p, keeps_best=False),
    "top_p": Entry(lambda params: params.top_p < 1, filters.top_p, is_batched=True),
    "min_p": Entry(lambda params: params.min_p > 0, filters.min_p, is_batched=True),
    "xtc": Entry(lambda params: params.xtc_probability > 0, filters.xtc, keeps_best=False),
    "temperature": Entry(lambda params: True, filters.temperature, is_batched=True),
    "adaptive_p": Entry(lambda params: params.adaptive_target >= 0),
}

MERGED: Mapping[tuple[SamplerName, SamplerName], FilterFunction] = {("top_p", "min_p"): filters.top_p_then_min_p}
"""Pairs that are faster together, with the same result."""
LAST: Mapping[tuple[SamplerName, ...], FilterFunction] = {("xtc", "temperature"): filters.xtc_then_temperature}
"""The same, if nothing but the draw comes after them."""


def active_samplers(params: SamplingParams) -> list[SamplerName]:
    """The samplers that change something, in their order."""
    return [name for name in params.samplers if SAMPLERS[name].is_active(params)]


def batched_order() -> tuple[SamplerName, ...]:
    """The filters that `batch_sampler.py` applies, in its order."""
    return tuple(name for name, entry in SAMPLERS.items() if entry.is_batched)
