"""Adaptive-p, against a plain reference and against llama.cpp."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.adaptive import AdaptiveTarget
from paddock.engine.candidates import Logits
from paddock.engine.sampler import Sampler
from paddock.types import SamplerName, SamplingParams
from tests.engine import native as lib
from tests.engine.sampling import changed, choose_all, random_rows, unusual_params, usual_params

_LAST: tuple[SamplerName, ...] = (*SamplingParams().samplers, "adaptive_p")


def _adaptive(target: float, decay: float = 0.9, **more: Any) -> SamplingParams:
    return changed(samplers=_LAST, adaptive_target=target, adaptive_decay=decay, **more)


def _reference(chosen: Sequence[float], target: float, decay: float, probabilities: Sequence[float]) -> list[float]:
    """The weights of a step, from all probabilities that were chosen before it: the oldest first."""
    steps = [1.0, *(decay ** (age + 1) for age in range(5000))]
    # Before the first token, infinitely many have met the target.
    newest_first = [*reversed(chosen), *[target] * (len(steps) - len(chosen))]
    average = sum(p * w for p, w in zip(newest_first, steps, strict=True)) / sum(steps)
    aim = min(max(2 * target - average, 0), 1)
    logits = [5 - 10 * (abs(p - aim) / 0.3) ** 2 / (1 + abs(p - aim) / 0.3) for p in probabilities]
    weights = [math.exp(logit) if p > 0 else 0 for logit, p in zip(logits, probabilities, strict=True)]
    return [weight / sum(weights) for weight in weights]


_SHARES = st.lists(st.integers(0, 20), min_size=1, max_size=6).filter(any)


@given(st.floats(0, 1), st.floats(0, 0.99), st.lists(st.tuples(_SHARES, st.integers(0, 5)), max_size=6))
def test_weights_agree_with_a_plain_reference(target: float, decay: float, steps: list[tuple[list[int], int]]) -> None:
    adaptive = AdaptiveTarget(target, decay)
    chosen: list[float] = []
    for shares, at in steps:
        probabilities = np.array(shares, np.float64) / sum(shares)
        weights = adaptive.weigh(probabilities)
        assert weights.tolist() == pytest.approx(_reference(chosen, target, decay, probabilities.tolist()), abs=1e-9)
        at %= len(shares)
        adaptive.choose(probabilities[at])
        if at % 2:
            adaptive.reject()
        else:
            chosen.append(probabilities[at])


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("target", [0.05, 0.4, 1.0])
def test_each_step_agrees_with_llama_cpp(target: float, decay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(3).normal(0, 3, (30, 200)).astype(np.float32)
    ours = Sampler(_adaptive(target, decay, temperature=0.8, n_probs=200, post_sampling_probs=True))
    temperature, theirs = lib.llama_sampler_init_temp(0.8), lib.llama_sampler_init_adaptive_p(target, decay, 1)
    for row in rows:
        data = (lib.llama_token_data * len(row))(*(lib.llama_token_data(*each) for each in enumerate(row.tolist())))
        array = lib.llama_token_data_array(data, len(row), -1, False)
        for sampler in (temperature, theirs):
            lib.llama_sampler_apply(sampler, ctypes.byref(array))
        expected = {int(each.id): float(each.p) for each in array.data[: array.size]}
        token = list(expected)[array.selected]
        lib.llama_sampler_accept(theirs, token)
        # The next step depends on the chosen token, so both must choose the same.
        monkeypatch.setattr(ours, "draw", lambda _, at=token: at)
        sampled = ours.choose(row)
        assert sampled.token == token and sampled.logprobs is not None
        left = {id: math.exp(logprob) for id, logprob in sampled.logprobs.top}
        assert left == pytest.approx(expected, rel=2e-3, abs=1e-6)
    for sampler in (temperature, theirs):
        lib.llama_sampler_free(sampler)


@given(st.data(), unusual_params(), st.floats(0, 1))
def test_other_rows_do_not_change_a_token(data: st.DataObject, params: SamplingParams, target: float) -> None:
    rows = data.draw(random_rows(3))
    params = changed(params, samplers=("adaptive_p", *params.samplers), adaptive_target=target)
    together = [Sampler(params), Sampler(data.draw(usual_params)), Sampler(params)]
    alone = Sampler(params)
    for _ in range(3):
        first, _, third = (sampled.token for sampled in choose_all(rows, together))
        assert first == alone.choose(rows[0]).token
        assert third is not None


@given(random_rows(), unusual_params())
def test_without_a_target_it_changes_nothing(rows: Logits, params: SamplingParams) -> None:
    listed = Sampler(changed(params, samplers=(*params.samplers, "adaptive_p")))
    plain = Sampler(params)
    assert [listed.choose(rows[0]).token for _ in range(3)] == [plain.choose(rows[0]).token for _ in range(3)]


def test_the_chosen_tokens_have_a_probability_near_the_target_on_average() -> None:
    row = np.log(np.array([0.5, 0.2, 0.1, 0.1, 0.05, 0.05], np.float32))
    for target in (0.1, 0.3):
        sampler = Sampler(_adaptive(target))
        tokens = [sampler.choose(row).token for _ in range(2000)]
        assert np.mean([math.exp(row[token]) for token in tokens if token is not None]) == pytest.approx(
            target, abs=0.05
        )


def test_a_forced_token_does_not_count() -> None:
    row = np.log(np.array([0.7, 0.2, 0.1], np.float32))
    forced, free = Sampler(_adaptive(0.1)), Sampler(_adaptive(0.1))
    forced.force([1, 1, 1])
    for _ in range(3):
        assert choose_all(row[None].copy(), [forced])[0].token == 1
    free.drawn = forced.drawn
    assert [forced.choose(row).token for _ in range(20)] == [free.choose(row).token for _ in range(20)]
