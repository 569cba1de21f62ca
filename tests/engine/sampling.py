"""Helpers and strategies for tests of samplers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from paddock.engine.batch_sampler import BatchSampler
from paddock.engine.candidates import Candidates, Logits
from paddock.engine.sampler import Sampler
from paddock.types import Sampled, SamplerName, SamplingParams

NAMES: tuple[SamplerName, ...] = SamplingParams().samplers
OFF = SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0, seed=7)
"""All samplers are listed, but none is active."""

# Coarse values, because llama.cpp rounds them to float32.
shares = st.integers(0, 100).map(lambda n: n / 100)
usual_params = st.builds(
    SamplingParams,
    temperature=st.floats(0.1, 3),
    top_k=st.integers(1, 256),
    top_p=shares,
    min_p=shares,
    seed=st.integers(-(2**63), 2**64 - 1),
)
histories = st.lists(st.integers(0, 7), max_size=30)
SETTINGS: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.sampled_from([0, 0.2, 0.7, 2]),
    "dynatemp_range": st.sampled_from([0, 0.5, 1]),
    "dynatemp_exponent": st.sampled_from([0.5, 3]),
    "top_k": st.integers(-1, 300),
    "top_p": shares,
    "min_p": shares,
    "typical_p": shares,
    "xtc_probability": st.just(1),
    "xtc_threshold": st.integers(1, 60).map(lambda n: n / 100),
    "repeat_last_n": st.integers(-1, 20),
    "repeat_penalty": st.sampled_from([0.5, 1.3]),
    "presence_penalty": st.sampled_from([-0.5, 1.5]),
    "frequency_penalty": st.sampled_from([-0.5, 1.5]),
    "dry_multiplier": st.just(0.8),
    "dry_allowed_length": st.integers(0, 3),
    "dry_penalty_last_n": st.integers(-1, 20),
    "min_keep": st.integers(1, 5),
    "logit_bias": st.lists(st.tuples(st.integers(0, 7), st.sampled_from([-math.inf, -2, 3])), max_size=3).map(tuple),
    "samplers": st.lists(st.sampled_from(NAMES), unique=True).map(tuple),
}


def changed(params: SamplingParams = OFF, **changes: Any) -> SamplingParams:
    return msgspec.structs.replace(params, **changes)


@st.composite
def unusual_params(draw: st.DrawFn, /, **always: st.SearchStrategy[Any]) -> SamplingParams:
    """A few settings at a time. With all of them the first sampler would leave no candidates."""
    names = draw(st.sets(st.sampled_from(sorted(SETTINGS)), max_size=6)) - always.keys()
    strategies = {name: SETTINGS[name] for name in sorted(names)} | always
    return changed(**{name: draw(strategy) for name, strategy in strategies.items()})


@st.composite
def random_rows(draw: st.DrawFn, count: int = 1) -> Logits:
    """Many different logits, as from a model."""
    size = draw(st.sampled_from([8, 40, 300, 1500]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows: Logits = rng.normal(0, draw(st.sampled_from([0.5, 2, 4])), (count, size)).astype(np.float32)
    return rows


def adjusted(sampler: Sampler, row: Logits) -> Logits:
    """The row with the bias and the penalties that come before all filters."""
    row = row.copy()
    sampler.adjust(row)
    return row


def choose_all(rows: Logits, samplers: Sequence[Sampler]) -> list[Sampled]:
    """Choose a token for each row with its own sampler. The rows stay as they are."""
    return BatchSampler(samplers).choose(rows.copy())


def kept(candidates: Candidates) -> dict[int, float]:
    """The remaining candidates: token → probability."""
    candidates.take(candidates.logits > -math.inf)
    return dict(zip(candidates.ids.tolist(), candidates.probabilities().tolist(), strict=True))
