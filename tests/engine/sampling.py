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
from paddock.engine.selected_rows import KEPT, RATIO, SelectedRows, group_size, locate_groups
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
_extreme_shares = st.sampled_from([0.0, 5e-324, 0.05, 0.3, 0.95, 1.0])
_factors = st.sampled_from([-100.0, 0.0, 1.0, 100.0])
_large = st.sampled_from([0.0, 1e-300, 0.1, 1.0, 5.0, 1e30, 1e300])
_counts = st.sampled_from([-1, 0, 1, 2, 40, 257, 10**6, 2**31 - 1])


def accepted_settings(tokens: st.SearchStrategy[int]) -> dict[str, st.SearchStrategy[Any]]:
    """Values of the range that the HTTP API accepts, most of them extreme. Biases are for these tokens."""
    return {
        "temperature": _large,
        "dynatemp_range": _large,
        "dynatemp_exponent": _large,
        "top_k": _counts,
        "top_p": _extreme_shares,
        "min_p": _extreme_shares,
        "typical_p": _extreme_shares,
        "top_n_sigma": st.sampled_from([-1.0, 0.0, 1e-300, 1.0, 1e300]),
        "xtc_probability": _extreme_shares,
        "xtc_threshold": _extreme_shares,
        "repeat_last_n": _counts,
        "repeat_penalty": st.sampled_from([0.01, 1.0, 1.3, 100.0]),
        "presence_penalty": _factors,
        "frequency_penalty": _factors,
        "dry_multiplier": _large,
        "dry_base": st.sampled_from([1.0, 1.0000001, 1.75, 1e300]),
        "dry_allowed_length": st.sampled_from([0, 1, 2, 2**31 - 1]),
        "dry_penalty_last_n": _counts,
        "mirostat": st.integers(0, 2),
        "mirostat_tau": _large,
        "mirostat_eta": _large,
        "min_keep": st.sampled_from([0, 1, 3, 2**31 - 1]),
        "adaptive_target": st.sampled_from([-1.0, 0.0, 0.4, 1.0]),
        "adaptive_decay": st.sampled_from([0.0, 0.9, 0.99]),
        "samplers": st.lists(st.sampled_from((*NAMES, "adaptive_p")), max_size=12).map(tuple),
        "logit_bias": st.lists(
            st.tuples(tokens, st.sampled_from([-math.inf, -math.inf, -1000.0, 2.5, 1000.0])), max_size=8
        ).map(tuple),
        "ignore_eos": st.booleans(),
        "seed": st.integers(-(2**63), 2**64 - 1),
        "n_probs": st.sampled_from([-1, 0, 3, 10**6]),
        "post_sampling_probs": st.booleans(),
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


def select_groups(rows: Logits, rng: np.random.Generator) -> SelectedRows | None:
    """What a device does. Of equal groups it may choose any."""
    count, n_vocab = rows.shape
    size = group_size(n_vocab)
    inner = size // RATIO
    body = n_vocab - n_vocab % size
    groups = rows[:, :body].reshape(count, -1, size)
    best = _best(groups.max(axis=2), rng)
    within = np.take_along_axis(groups, best[:, :, None], axis=1).reshape(count, -1, inner)
    finer = _best(within.max(axis=2), rng)
    chosen = np.take_along_axis(within, finer[:, :, None], axis=1)
    return locate_groups(best, finer, chosen, rows[:, body:], size=size, n_vocab=n_vocab)


def _best(maxima: Logits, rng: np.random.Generator) -> Any:
    order = np.lexsort((rng.random(maxima.shape), -maxima), axis=1)
    return order[:, :KEPT].astype(np.int32)
