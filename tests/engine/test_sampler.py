from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from paddock.engine.batch_sampler import BatchSampler
from paddock.engine.candidates import Candidates, Logits, top_k
from paddock.engine.draws import uniform
from paddock.engine.sampler import Sampler, logprobs_of
from paddock.types import SamplerName, SamplingParams
from tests.engine.sampling import (
    OFF,
    adjusted,
    changed,
    choose_all,
    histories,
    kept,
    random_rows,
    unusual_params,
    usual_params,
)


def _steps(rows: Logits) -> list[Logits]:
    """The rows of a few steps. Their distributions become flatter."""
    return [(rows * scale).astype(np.float32) for scale in (8, 4, 1, 0.3)]


# ── choosing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(npst.arrays(np.float32, st.integers(1, 80), elements=st.integers(-3, 3)), st.integers(-1, 90))
def test_top_k_is_the_head_of_a_full_sort_with_ties_by_id(row: Logits, k: int) -> None:
    expected = sorted(range(len(row)), key=lambda i: (-row[i], i))
    assert top_k(row, k).tolist() == (expected[:k] if k > 0 else expected)


@given(st.integers(1, 6), st.integers(0, 200), st.integers(1, 5000), st.integers(0, 2**32))
def test_top_k_of_a_large_vocabulary_is_exact_too(k: int, more: int, levels: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    row = rng.integers(0, levels, 64 * 4 * k + more).astype(np.float32)
    row[rng.random(len(row)) < 0.5] = -np.inf
    row[rng.integers(0, len(row), rng.integers(0, 3))] = np.inf
    row[rng.integers(0, len(row), rng.integers(0, 3))] = np.nan
    assert (
        top_k(row, k).tolist()
        == np.lexsort((np.arange(len(row)), -np.nan_to_num(row, nan=-np.inf, posinf=np.inf, neginf=-np.inf)))[
            :k
        ].tolist()
    )


@given(st.data(), st.lists(usual_params, min_size=1, max_size=5))
def test_batched_rows_give_the_same_tokens_as_single_rows(data: st.DataObject, params: list[SamplingParams]) -> None:
    drawn = data.draw(random_rows(len(params)))
    batched, single = ([Sampler(p) for p in params] for _ in range(2))
    alone = [BatchSampler([Sampler(p)]) for p in params]
    assert all(sampler.is_batchable for sampler in batched)
    batch = BatchSampler(batched)
    for rows in _steps(drawn):
        tokens = [sampled.token for sampled in batch.choose(rows.copy())]
        assert tokens == [sampler.choose(row).token for row, sampler in zip(rows, single, strict=True)]
        assert tokens == [batch.choose(row[None].copy())[0].token for row, batch in zip(rows, alone, strict=True)]


@given(
    st.data(),
    st.lists(
        st.tuples(usual_params | unusual_params() | unusual_params(mirostat=st.integers(1, 2)), histories),
        min_size=1,
        max_size=4,
    ),
)
def test_other_rows_and_log_probabilities_do_not_change_a_token(
    data: st.DataObject, requests: list[tuple[SamplingParams, list[int]]]
) -> None:
    drawn = data.draw(random_rows(len(requests)))
    batched = [Sampler(*each) for each in requests]
    single = [Sampler(changed(params, n_probs=2), prompt) for params, prompt in requests]
    for rows in _steps(drawn):
        tokens = [sampled.token for sampled in choose_all(rows, batched)]
        assert tokens == [sampler.choose(row).token for row, sampler in zip(rows, single, strict=True)]


@pytest.mark.parametrize("params", [OFF, changed(top_k=40)], ids=["general", "usual"])
def test_draws_follow_the_distribution(params: SamplingParams) -> None:
    rows = np.log(np.array([[0.5, 0.3, 0.2, 0]], np.float32), where=[True] * 3 + [False], out=np.full((1, 4), -np.inf))
    sampler = Sampler(params)
    counts = Counter(choose_all(rows.astype(np.float32), [sampler])[0].token for _ in range(5000))
    assert [counts[i] / 5000 for i in range(4)] == pytest.approx([0.5, 0.3, 0.2, 0], abs=0.025)


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others() -> None:
    row = np.random.default_rng(0).normal(size=200).astype(np.float32)

    def tokens(seed: int) -> list[int | None]:
        sampler = Sampler(changed(seed=seed))
        return [sampler.choose(row).token for _ in range(20)]

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)


def test_a_draw_is_a_hash_of_seed_and_position() -> None:
    assert len({uniform(seed, n) for seed in range(50) for n in range(50)}) == 2500
    assert uniform(-1, 3) == uniform(2**64 - 1, 3)
    streams = np.array([[uniform(seed, n) for n in range(4000)] for seed in range(6)])
    assert streams.min() >= 0 and streams.max() < 1
    assert streams.mean(axis=1) == pytest.approx([0.5] * 6, abs=0.03)
    # The answers to one request have neighbouring seeds.
    assert np.abs(np.corrcoef(streams) - np.eye(6)).max() < 0.06


@pytest.mark.parametrize(
    "params", [changed(temperature=0), changed(top_k=1), changed(temperature=0, n_probs=0, top_k=9)]
)
def test_greedy_takes_the_first_of_the_largest(params: SamplingParams) -> None:
    rows = np.array([[0, 3, 3, 1]], np.float32)
    assert choose_all(rows, [Sampler(params)])[0].token == 1


@given(
    st.sampled_from([[0, 0, 0, 0], [0, 1e-6, 0, 0], [40, 0, -40, -40], [1000, 0, -1000, -1e30]]),
    st.builds(
        SamplingParams,
        temperature=st.sampled_from([0, 1e-310, 1, 1e300]),
        dynatemp_range=st.sampled_from([0, 1e300]),
        top_n_sigma=st.sampled_from([-1, 1e-300, 1e30]),
        typical_p=st.sampled_from([0, 1]),
        min_p=st.sampled_from([0, 5e-324, 1]),
        xtc_probability=st.sampled_from([0, 1]),
        xtc_threshold=st.sampled_from([0, 0.5]),
        dry_multiplier=st.sampled_from([0, 1e300]),
        dry_base=st.sampled_from([1, 1.0000001, 1.75, 1e300]),
        mirostat=st.sampled_from([0, 1, 2]),
        mirostat_tau=st.sampled_from([0, 5, 1e3, 1e300]),
        mirostat_eta=st.sampled_from([0, 1e300]),
    ),
)
def test_extreme_settings_still_give_a_token(logits: list[float], params: SamplingParams) -> None:
    sampler = Sampler(changed(params, logit_bias=((0, -math.inf),), n_probs=1, post_sampling_probs=True), [1, 2] * 300)
    for _ in range(3):
        sampled = sampler.choose(np.array(logits, np.float32))
        assert sampled.token in (1, 2, 3)
        assert sampled.logprobs is not None and -200 < sampled.logprobs.chosen <= 0


# ── single samplers ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_penalties_include_the_answer_and_divide_positive_logits() -> None:
    row = np.array([2, -2, 1, 0], np.float32)
    sampler = Sampler(changed(temperature=0, repeat_penalty=4.0, repeat_last_n=2), [3, 1])
    assert adjusted(sampler, row).tolist() == [2, -8, 1, 0]
    assert [sampler.choose(row).token for _ in range(3)] == [0, 2, 0]
    assert adjusted(sampler, row).tolist() == [0.5, -2, 0.25, 0]


@given(st.lists(st.integers(0, 4), max_size=14), st.integers(1, 4), st.integers(-1, 14))
def test_dry_with_breakers_agrees_with_a_direct_implementation(history: list[int], allowed: int, last: int) -> None:
    breakers = frozenset([4])
    params = changed(dry_multiplier=0.5, dry_base=2.0, dry_allowed_length=allowed, dry_penalty_last_n=last)
    seen = history if last < 0 else history[len(history) - min(last, len(history)) :]
    expected = [0.0] * 6
    for token in set(range(6)) - breakers:
        sizes = [
            size
            for size in range(allowed, len(seen))
            if breakers.isdisjoint(ending := seen[len(seen) - size :])
            and any(seen[at : at + size + 1] == [*ending, token] for at in range(len(seen) - size))
        ]
        if sizes:
            expected[token] = -0.5 * 2.0 ** (max(sizes) - allowed)
    sampler = Sampler(params, history, breakers=lambda strings: breakers if "\n" in strings else frozenset())
    assert adjusted(sampler, np.zeros(6, np.float32)).tolist() == expected


def test_xtc_draws_a_new_number_for_each_token() -> None:
    sampler = Sampler(changed(xtc_probability=0.5, xtc_threshold=0.1))
    counts = Counter(sampler.choose(np.array([0.01, 0], np.float32)).token for _ in range(2000))
    assert counts[1] / 2000 == pytest.approx(0.75, abs=0.04)


def test_a_text_biases_all_its_tokens() -> None:
    row = np.zeros(4, np.float32)
    params = changed(logit_bias=(("ab", -math.inf), (1, 5.0), ("b", 2.0)), temperature=0)
    sampler = Sampler(params, tokenize=lambda text: ["_ab".index(letter) for letter in text])
    assert dict(zip(sampler.bias_ids.tolist(), sampler.bias.tolist(), strict=True)) == {1: -math.inf, 2: -math.inf}
    assert sampler.choose(row).token == 0


def test_logit_bias_raises_bans_and_ignores_end_tokens() -> None:
    row = np.array([5, 4, 3, 0], np.float32)
    bias = ((0, -math.inf), (3, 3.5))
    for params, expected in [(changed(logit_bias=bias), 1), (changed(logit_bias=bias, ignore_eos=True), 3)]:
        assert Sampler(changed(params, temperature=0), end_tokens=frozenset([1])).choose(row).token == expected
        sampler = Sampler(params, end_tokens=frozenset([1]))
        tokens = {sampler.choose(row).token for _ in range(500)}
        assert tokens == ({2, 3} if params.ignore_eos else {1, 2, 3})


def test_the_order_of_the_samplers_matters() -> None:
    row = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))

    def left(*samplers: SamplerName, **changes: Any) -> list[int]:
        sampler = Sampler(changed(samplers=samplers, **changes), [0, 0, 0])
        return sorted(kept(sampler._filtered(adjusted(sampler, row))))

    # A high temperature flattens the distribution, so more tokens are needed for 0.7.
    assert left("top_p", "temperature", top_p=0.7, temperature=3) == [0, 1]
    assert left("temperature", "top_p", top_p=0.7, temperature=3) == [0, 1, 2]
    # Two tokens have a probability of 0.84 among three, and 0.8 among four.
    assert left("top_k", "top_p", top_k=3, top_p=0.83) == [0, 1]
    assert left("top_p", "top_k", top_k=3, top_p=0.83) == [0, 1, 2]
    assert left("penalties", "top_k", top_k=2, presence_penalty=5.0) == [1, 2]
    assert left("top_k", "penalties", top_k=2, presence_penalty=5.0) == [0, 1]
    assert left("top_k", "penalties", "temperature", top_k=2, presence_penalty=5.0, temperature=0) == [1]
    # At temperature 0 the most likely of the remaining tokens is chosen.
    assert left("typ_p", "temperature", typical_p=0.1, temperature=0) == [1]
    assert left("xtc", "temperature", xtc_probability=1, xtc_threshold=0.1, temperature=0) == [2]
    assert left(top_k=1) == [0, 1, 2, 3]


def test_min_keep_limits_all_filters_but_top_k() -> None:
    row, params = np.array([0, 9, 1, 2], np.float32), changed(top_p=0.1, min_p=1.0, typical_p=0.1, min_keep=3)
    assert sorted(Sampler(params)._filtered(row).ids) == [1, 2, 3]
    assert Sampler(changed(params, top_k=1))._filtered(row).ids.tolist() == [1]


def test_the_dynamic_temperature_rises_with_the_flatness() -> None:
    params = changed(temperature=1, dynatemp_range=0.5)

    def temperature(row: Logits) -> float:
        after = Sampler(params)._filtered(row).logits
        return float((row.max() - row.min()) / (after.max() - after.min()))

    assert temperature(np.array([0, 1e-3, 0, 0], np.float32)) == pytest.approx(1.5, abs=0.01)
    assert temperature(np.array([30, 0, 0, 0], np.float32)) == pytest.approx(0.5, abs=0.01)


# ── reported probabilities ───────────────────────────────────────────────────────────────────────────────────────────


def test_log_probabilities_are_those_before_sampling() -> None:
    row = np.array([1, 3, 2, 3], np.float32)
    sampled = Sampler(changed(logit_bias=((1, -math.inf),), temperature=0, top_k=1, n_probs=3)).choose(row)
    expected = np.log(Candidates.all(row).probabilities())
    assert sampled.token == 3 and sampled.logprobs is not None
    assert sampled.logprobs.chosen == pytest.approx(expected[3])
    assert [token for token, _ in sampled.logprobs.top] == [1, 3, 2]
    assert [logprob for _, logprob in sampled.logprobs.top] == pytest.approx(expected[[1, 3, 2]])
    assert sampled.logprobs == logprobs_of(row, 3, 3)
    assert logprobs_of(row, 0, 0).top == []


def test_post_sampling_probabilities_are_those_of_the_draw() -> None:
    row = np.array([1, 3, 2, 0], np.float32)
    params = changed(top_k=2, temperature=0.5, n_probs=9, post_sampling_probs=True)
    sampled = Sampler(params).choose(row)
    expected = {1: 1 / (1 + math.exp(-2)), 2: 1 / (1 + math.exp(2))}
    assert sampled.logprobs is not None and sampled.token is not None
    assert {token: math.exp(logprob) for token, logprob in sampled.logprobs.top} == pytest.approx(expected)
    assert math.exp(sampled.logprobs.chosen) == pytest.approx(expected[sampled.token])
    assert Sampler(changed(params, n_probs=-1)).choose(row).logprobs is None


@pytest.mark.parametrize("size", [50, 20_000])
def test_a_row_with_nan_does_not_affect_other_rows(size: int) -> None:
    rows = np.random.default_rng(1).normal(size=(3, size)).astype(np.float32)
    expected = [sampled.token for sampled in choose_all(rows, [Sampler(SamplingParams(seed=n)) for n in range(3)])]
    rows[1, ::7] = np.nan
    chosen = [sampled.token for sampled in choose_all(rows, [Sampler(SamplingParams(seed=n)) for n in range(3)])]
    assert (chosen[0], chosen[2]) == (expected[0], expected[2])
    assert not np.isnan(rows[1, chosen[1]])
    choose_all(np.full((2, size), np.nan, np.float32), [Sampler(SamplingParams(seed=n)) for n in range(2)])
