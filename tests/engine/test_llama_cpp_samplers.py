"""Our samplers against those of llama.cpp."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddock.engine.candidates import Candidates, Logits
from paddock.engine.sampler import Sampler
from paddock.types import SamplerName, SamplingParams
from tests.engine import native as lib
from tests.engine.sampling import (
    NAMES,
    SETTINGS,
    adjusted,
    changed,
    histories,
    kept,
    random_rows,
    shares,
    unusual_params,
)
from tests.tiers import examples

# At a threshold the rounding decides, and llama.cpp computes with float32. So the examples are always the same.
STEADY = settings(examples(75), derandomize=True)


def _llama_cpp_sampler(name: SamplerName, p: SamplingParams, n_vocab: int, history: Sequence[int]) -> Any:
    repeat_last_n, dry_last_n = (len(history) if n < 0 else n for n in (p.repeat_last_n, p.dry_penalty_last_n))
    penalties = p.repeat_penalty, p.frequency_penalty, p.presence_penalty
    # Without breakers the vocabulary is not used.
    dry = None, p.dry_multiplier, p.dry_base, p.dry_allowed_length, dry_last_n, None, 0
    make: dict[SamplerName, Callable[[], Any]] = {
        "penalties": lambda: lib.llama_sampler_init_penalties(n_vocab, repeat_last_n, *penalties),
        "dry": lambda: lib.llama_sampler_init_dry(*dry),
        "top_n_sigma": lambda: lib.llama_sampler_init_top_n_sigma(p.top_n_sigma),
        "top_k": lambda: lib.llama_sampler_init_top_k(p.top_k),
        "typ_p": lambda: lib.llama_sampler_init_typical(p.typical_p, p.min_keep),
        "top_p": lambda: lib.llama_sampler_init_top_p(p.top_p, p.min_keep),
        "min_p": lambda: lib.llama_sampler_init_min_p(p.min_p, p.min_keep),
        "xtc": lambda: lib.llama_sampler_init_xtc(p.xtc_probability, p.xtc_threshold, p.min_keep, 1),
        "temperature": lambda: lib.llama_sampler_init_temp_ext(p.temperature, p.dynatemp_range, p.dynatemp_exponent),
    }
    sampler = make[name]()
    for token in history:
        lib.llama_sampler_accept(sampler, token)
    return sampler


def _apply(row: Logits, samplers: list[Any]) -> tuple[dict[int, float], int]:
    """The candidates after llama.cpp's samplers as token → probability, and the index of the selected one."""
    data = (lib.llama_token_data * len(row))(*(lib.llama_token_data(*each) for each in enumerate(row.tolist())))
    array = lib.llama_token_data_array(data, len(row), -1, False)
    for sampler in samplers:
        lib.llama_sampler_apply(sampler, ctypes.byref(array))
    left = array.data[: array.size]
    candidates = Candidates(np.array([each.id for each in left]), np.array([each.logit for each in left]), ordered=True)
    return kept(candidates), int(array.selected)


def _assert_like_llama_cpp(row: Logits, params: SamplingParams, history: Sequence[int] = ()) -> None:
    if "typ_p" in params.samplers:  # llama.cpp multiplies the probability 0 by its logarithm
        params = changed(params, logit_bias=())
    ours = Sampler(params, history)
    chain = [_llama_cpp_sampler(name, params, len(row), history) for name in params.samplers]
    if params.logit_bias:
        biases = (lib.llama_logit_bias * len(params.logit_bias))(
            *(lib.llama_logit_bias(*each) for each in params.logit_bias)
        )
        chain.insert(0, lib.llama_sampler_init_logit_bias(len(row), len(biases), biases))
    expected, _ = _apply(row, chain)
    for sampler in chain:
        lib.llama_sampler_free(sampler)
    remaining = kept(ours._filtered(adjusted(ours, row)))
    assert sorted(remaining) == sorted(expected)
    assert remaining == pytest.approx(expected, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
@STEADY
@given(random_rows(), st.fixed_dictionaries(SETTINGS), shares, histories)
def test_each_sampler_agrees_with_llama_cpp(
    name: SamplerName, rows: Logits, changes: dict[str, Any], top_n_sigma: float, history: list[int]
) -> None:
    _assert_like_llama_cpp(rows[0], changed(**changes | {"samplers": (name,), "top_n_sigma": 3 * top_n_sigma}), history)


@STEADY
@given(random_rows(), unusual_params(samplers=SETTINGS["samplers"]), histories)
def test_samplers_in_any_order_agree_with_llama_cpp(rows: Logits, params: SamplingParams, history: list[int]) -> None:
    # At temperature 0 llama.cpp keeps removed candidates with -inf, and later samplers fail at them.
    _assert_like_llama_cpp(rows[0], changed(params, temperature=params.temperature or 0.5), history)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("tau", [0.5, 3, 6])
def test_mirostat_agrees_with_llama_cpp_at_each_step(version: int, tau: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(version).normal(0, 3, (30, 500)).astype(np.float32)
    ours = Sampler(changed(temperature=0.8, mirostat=version, mirostat_tau=tau, n_probs=500, post_sampling_probs=True))
    temperature = lib.llama_sampler_init_temp(0.8)
    v1, v2 = lib.llama_sampler_init_mirostat(500, 1, tau, 0.1, 100), lib.llama_sampler_init_mirostat_v2(1, tau, 0.1)
    for row in rows:
        expected, selected = _apply(row, [temperature, v1 if version == 1 else v2])
        # The next step depends on the selected token, so both must select the same.
        monkeypatch.setattr(ours, "draw", lambda _, at=selected: at)
        sampled = ours.choose(row)
        assert sampled.token == list(expected)[selected] and sampled.logprobs is not None
        left = {token: math.exp(logprob) for token, logprob in sampled.logprobs.top}
        assert left == pytest.approx(expected, rel=1e-3, abs=1e-6)
    for sampler in (temperature, v1, v2):
        lib.llama_sampler_free(sampler)
