from __future__ import annotations

import ctypes
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, get_args

import llama_cpp.llama_cpp as lib
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from paddock.engine.batch_sampler import BatchSampler
from paddock.engine.candidates import Candidates, Logits, softmax, top_k
from paddock.engine.sampler import Sampler, logprobs_of, uniform
from paddock.types import SamplerName, SamplingParams
from tests.engine.sampling import choose_all

_NAMES: tuple[SamplerName, ...] = get_args(SamplerName)
_OFF = SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0, seed=7)
"""Every sampler in its place, and none of them does anything."""

# At a threshold the rounding decides, and llama.cpp's floats are shorter. The same examples each time keep that out.
_steady = settings(derandomize=True, max_examples=75)

# Coarse, lest llama.cpp round to another setting than ours.
_share = st.integers(0, 100).map(lambda n: n / 100)
_usual = st.builds(
    SamplingParams,
    temperature=st.floats(0.1, 3),
    top_k=st.integers(1, 256),
    top_p=_share,
    min_p=_share,
    seed=st.integers(-(2**63), 2**64 - 1),
)
_history = st.lists(st.integers(0, 7), max_size=30)
_settings: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.sampled_from([0, 0.2, 0.7, 2]),
    "dynatemp_range": st.sampled_from([0, 0.5, 1]),
    "dynatemp_exponent": st.sampled_from([0.5, 3]),
    "top_k": st.integers(-1, 300),
    "top_p": _share,
    "min_p": _share,
    "typical_p": _share,
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
    "samplers": st.lists(st.sampled_from(_NAMES), unique=True).map(tuple),
}


def _but(params: SamplingParams = _OFF, **changes: Any) -> SamplingParams:
    return msgspec.structs.replace(params, **changes)


@st.composite
def _unusual(draw: st.DrawFn, /, **always: st.SearchStrategy[Any]) -> SamplingParams:
    """A few settings at a time, since with all of them the first would leave nothing for the rest."""
    names = draw(st.sets(st.sampled_from(sorted(_settings)), max_size=6)) - always.keys()
    strategies = {name: _settings[name] for name in sorted(names)} | always
    return _but(**{name: draw(strategy) for name, strategy in strategies.items()})


@st.composite
def _rows(draw: st.DrawFn, count: int = 1) -> Logits:
    """Logits as models make them: many, no two alike."""
    size = draw(st.sampled_from([8, 40, 300, 1500]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows: Logits = rng.normal(0, draw(st.sampled_from([0.5, 2, 4])), (count, size)).astype(np.float32)
    return rows


def _steps(rows: Logits) -> list[Logits]:
    """The rows of a few steps. At first few tokens can be chosen."""
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
    assert top_k(row, k).tolist() == np.lexsort((np.arange(len(row)), -row))[:k].tolist()


@given(st.data(), st.lists(_usual, min_size=1, max_size=5))
def test_rows_done_together_come_out_as_they_do_one_by_one(data: st.DataObject, params: list[SamplingParams]) -> None:
    drawn = data.draw(_rows(len(params)))
    together, apart = ([Sampler(p) for p in params] for _ in range(2))
    alone = [BatchSampler([Sampler(p)]) for p in params]
    assert all(sampler.is_batchable for sampler in together)
    batch = BatchSampler(together)
    for rows in _steps(drawn):
        tokens = [sampled.token for sampled in batch.choose(rows)]
        assert tokens == [sampler.choose(row).token for row, sampler in zip(rows, apart, strict=True)]
        assert tokens == [batch.choose(row[None])[0].token for row, batch in zip(rows, alone, strict=True)]


@given(
    st.data(),
    st.lists(st.tuples(_usual | _unusual() | _unusual(mirostat=st.integers(1, 2)), _history), min_size=1, max_size=4),
)
def test_neighbours_and_what_is_asked_about_a_token_never_change_it(
    data: st.DataObject, asked: list[tuple[SamplingParams, list[int]]]
) -> None:
    drawn = data.draw(_rows(len(asked)))
    together = [Sampler(*each) for each in asked]
    apart = [Sampler(_but(params, n_probs=2), prompt) for params, prompt in asked]
    for rows in _steps(drawn):
        tokens = [sampled.token for sampled in choose_all(rows, together)]
        assert tokens == [sampler.choose(row).token for row, sampler in zip(rows, apart, strict=True)]


@pytest.mark.parametrize("params", [_OFF, _but(top_k=40)], ids=["general", "usual"])
def test_draws_follow_the_distribution(params: SamplingParams) -> None:
    rows = np.log(np.array([[0.5, 0.3, 0.2, 0]], np.float32), where=[True] * 3 + [False], out=np.full((1, 4), -np.inf))
    sampler = Sampler(params)
    counts = Counter(choose_all(rows.astype(np.float32), [sampler])[0].token for _ in range(5000))
    assert [counts[i] / 5000 for i in range(4)] == pytest.approx([0.5, 0.3, 0.2, 0], abs=0.025)


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others() -> None:
    row = np.random.default_rng(0).normal(size=200).astype(np.float32)

    def tokens(seed: int) -> list[int | None]:
        sampler = Sampler(_but(seed=seed))
        return [sampler.choose(row).token for _ in range(20)]

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)


def test_a_draw_is_a_hash_of_seed_and_place() -> None:
    assert len({uniform(seed, n) for seed in range(50) for n in range(50)}) == 2500
    assert uniform(-1, 3) == uniform(2**64 - 1, 3)
    streams = np.array([[uniform(seed, n) for n in range(4000)] for seed in range(6)])
    assert streams.min() >= 0 and streams.max() < 1
    assert streams.mean(axis=1) == pytest.approx([0.5] * 6, abs=0.03)
    # The answers to one request have neighbouring seeds.
    assert np.abs(np.corrcoef(streams) - np.eye(6)).max() < 0.06


@pytest.mark.parametrize("params", [_but(temperature=0), _but(top_k=1), _but(temperature=0, n_probs=0, top_k=9)])
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
def test_no_setting_is_too_extreme_to_choose_by(logits: list[float], params: SamplingParams) -> None:
    sampler = Sampler(_but(params, logit_bias=((0, -math.inf),), n_probs=1, post_sampling_probs=True), [1, 2] * 300)
    for _ in range(3):
        sampled = sampler.choose(np.array(logits, np.float32))
        assert sampled.token in (1, 2, 3)
        assert sampled.logprobs is not None and -200 < sampled.logprobs.chosen <= 0


# ── the same as llama.cpp's ──────────────────────────────────────────────────────────────────────────────────────────


def _theirs(name: SamplerName, p: SamplingParams, n_vocab: int, history: Sequence[int]) -> Any:
    repeat_last_n, dry_last_n = (len(history) if n < 0 else n for n in (p.repeat_last_n, p.dry_penalty_last_n))
    penalties = p.repeat_penalty, p.frequency_penalty, p.presence_penalty
    # Without breakers it never looks at the vocabulary.
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
    """What llama.cpp's own samplers leave, as token → probability, and the place of the chosen one, if any was."""
    data = (lib.llama_token_data * len(row))(*(lib.llama_token_data(*each) for each in enumerate(row.tolist())))
    array = lib.llama_token_data_array(data, len(row), -1, False)
    for sampler in samplers:
        lib.llama_sampler_apply(sampler, ctypes.byref(array))
    left = array.data[: array.size]
    candidates = Candidates(np.array([each.id for each in left]), np.array([each.logit for each in left]), ordered=True)
    return _left(candidates), int(array.selected)


def _left(candidates: Candidates) -> dict[int, float]:
    candidates.take(candidates.logits > -math.inf)
    return dict(zip(candidates.ids.tolist(), candidates.probabilities().tolist(), strict=True))


def _assert_like_llama_cpp(row: Logits, params: SamplingParams, history: Sequence[int] = ()) -> None:
    if "typ_p" in params.samplers:  # llama.cpp's multiplies a ban's probability, 0, by its logarithm
        params = _but(params, logit_bias=())
    ours = Sampler(params, history)
    chain = [_theirs(name, params, len(row), history) for name in params.samplers]
    if params.logit_bias:
        biases = (lib.llama_logit_bias * len(params.logit_bias))(
            *(lib.llama_logit_bias(*each) for each in params.logit_bias)
        )
        chain.insert(0, lib.llama_sampler_init_logit_bias(len(row), len(biases), biases))
    expected, _ = _apply(row, chain)
    for sampler in chain:
        lib.llama_sampler_free(sampler)
    left = _left(ours._filtered(ours._adjusted(row)))
    assert sorted(left) == sorted(expected)
    assert left == pytest.approx(expected, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("name", _NAMES)
@_steady
@given(_rows(), st.fixed_dictionaries(_settings), _share, _history)
def test_each_sampler_leaves_what_llama_cpp_s_own_leaves(
    name: SamplerName, rows: Logits, changes: dict[str, Any], top_n_sigma: float, history: list[int]
) -> None:
    _assert_like_llama_cpp(rows[0], _but(**changes | {"samplers": (name,), "top_n_sigma": 3 * top_n_sigma}), history)


@_steady
@given(_rows(), _unusual(samplers=_settings["samplers"]), _history)
def test_samplers_in_any_order_leave_what_llama_cpp_s_leave(
    rows: Logits, params: SamplingParams, history: list[int]
) -> None:
    # llama.cpp keeps what a temperature of 0 took away as impossible candidates, and fails at them later.
    _assert_like_llama_cpp(rows[0], _but(params, temperature=params.temperature or 0.5), history)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("tau", [0.5, 3, 6])
def test_mirostat_cuts_where_llama_cpp_does_step_by_step(
    version: int, tau: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.random.default_rng(version).normal(0, 3, (30, 500)).astype(np.float32)
    ours = Sampler(_but(temperature=0.8, mirostat=version, mirostat_tau=tau, n_probs=500, post_sampling_probs=True))
    temperature = lib.llama_sampler_init_temp(0.8)
    v1, v2 = lib.llama_sampler_init_mirostat(500, 1, tau, 0.1, 100), lib.llama_sampler_init_mirostat_v2(1, tau, 0.1)
    for row in rows:
        expected, selected = _apply(row, [temperature, v1 if version == 1 else v2])
        # How far the next step cuts depends on the choice, so that must be the same one.
        monkeypatch.setattr(ours, "draw", lambda _, at=selected: at)
        sampled = ours.choose(row)
        assert sampled.token == list(expected)[selected] and sampled.logprobs is not None
        left = {token: math.exp(logprob) for token, logprob in sampled.logprobs.top}
        assert left == pytest.approx(expected, rel=1e-3, abs=1e-6)
    for sampler in (temperature, v1, v2):
        lib.llama_sampler_free(sampler)


# ── single samplers ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_penalties_count_the_answer_too_and_divide_what_is_positive() -> None:
    row = np.array([2, -2, 1, 0], np.float32)
    sampler = Sampler(_but(temperature=0, repeat_penalty=4.0, repeat_last_n=2), [3, 1])
    assert sampler._adjusted(row).tolist() == [2, -8, 1, 0]
    assert [sampler.choose(row).token for _ in range(3)] == [0, 2, 0]
    assert sampler._adjusted(row).tolist() == [0.5, -2, 0.25, 0]


@given(st.lists(st.integers(0, 4), max_size=14), st.integers(1, 4), st.integers(-1, 14))
def test_dry_with_breakers_is_what_a_plain_reading_of_it_says(history: list[int], allowed: int, last: int) -> None:
    breakers = frozenset([4])
    params = _but(dry_multiplier=0.5, dry_base=2.0, dry_allowed_length=allowed, dry_penalty_last_n=last)
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
    assert sampler._adjusted(np.zeros(6, np.float32)).tolist() == expected


def test_xtc_throws_its_coin_anew_for_each_token() -> None:
    sampler = Sampler(_but(xtc_probability=0.5, xtc_threshold=0.1))
    counts = Counter(sampler.choose(np.array([0.01, 0], np.float32)).token for _ in range(2000))
    assert counts[1] / 2000 == pytest.approx(0.75, abs=0.04)


def test_a_biased_token_gains_a_banned_one_is_gone_and_the_end_is_a_ban_too() -> None:
    row = np.array([5, 4, 3, 0], np.float32)
    bias = ((0, -math.inf), (3, 3.5))
    for params, expected in [(_but(logit_bias=bias), 1), (_but(logit_bias=bias, ignore_eos=True), 3)]:
        assert Sampler(_but(params, temperature=0), end_tokens=frozenset([1])).choose(row).token == expected
        sampler = Sampler(params, end_tokens=frozenset([1]))
        tokens = {sampler.choose(row).token for _ in range(500)}
        assert tokens == ({2, 3} if params.ignore_eos else {1, 2, 3})


def test_the_order_of_the_samplers_matters() -> None:
    row = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))

    def left(*samplers: SamplerName, **changes: Any) -> list[int]:
        sampler = Sampler(_but(samplers=samplers, **changes), [0, 0, 0])
        return sorted(_left(sampler._filtered(sampler._adjusted(row))))

    # Heat flattens, so more are needed to make 0.7.
    assert left("top_p", "temperature", top_p=0.7, temperature=3) == [0, 1]
    assert left("temperature", "top_p", top_p=0.7, temperature=3) == [0, 1, 2]
    # Of three in all, two make 0.84; of four, 0.8.
    assert left("top_k", "top_p", top_k=3, top_p=0.83) == [0, 1]
    assert left("top_p", "top_k", top_k=3, top_p=0.83) == [0, 1, 2]
    assert left("penalties", "top_k", top_k=2, presence_penalty=5.0) == [1, 2]
    assert left("top_k", "penalties", top_k=2, presence_penalty=5.0) == [0, 1]
    assert left("top_k", "penalties", "temperature", top_k=2, presence_penalty=5.0, temperature=0) == [1]
    # Cold, the likeliest of those that are left is taken.
    assert left("typ_p", "temperature", typical_p=0.1, temperature=0) == [1]
    assert left("xtc", "temperature", xtc_probability=1, xtc_threshold=0.1, temperature=0) == [2]
    assert left(top_k=1) == [0, 1, 2, 3]


def test_min_keep_holds_back_what_would_cut_further_but_not_top_k() -> None:
    row, params = np.array([0, 9, 1, 2], np.float32), _but(top_p=0.1, min_p=1.0, typical_p=0.1, min_keep=3)
    assert sorted(Sampler(params)._filtered(row).ids) == [1, 2, 3]
    assert Sampler(_but(params, top_k=1))._filtered(row).ids.tolist() == [1]


def test_the_dynamic_temperature_goes_with_the_flatness() -> None:
    params = _but(temperature=1, dynatemp_range=0.5)

    def temperature(row: Logits) -> float:
        after = Sampler(params)._filtered(row).logits
        return float((row.max() - row.min()) / (after.max() - after.min()))

    assert temperature(np.array([0, 1e-3, 0, 0], np.float32)) == pytest.approx(1.5, abs=0.01)
    assert temperature(np.array([30, 0, 0, 0], np.float32)) == pytest.approx(0.5, abs=0.01)


# ── what is reported ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_model_s_own_opinion_knows_no_sampler() -> None:
    row = np.array([1, 3, 2, 3], np.float32)
    sampled = Sampler(_but(logit_bias=((1, -math.inf),), temperature=0, top_k=1, n_probs=3)).choose(row)
    expected = np.log(softmax(row.astype(np.float64)))
    assert sampled.token == 3 and sampled.logprobs is not None
    assert sampled.logprobs.chosen == pytest.approx(expected[3])
    assert [token for token, _ in sampled.logprobs.top] == [1, 3, 2]
    assert [logprob for _, logprob in sampled.logprobs.top] == pytest.approx(expected[[1, 3, 2]])
    assert sampled.logprobs == logprobs_of(row, 3, 3)
    assert logprobs_of(row, 0, 0).top == []


def test_probabilities_after_sampling_are_those_it_was_drawn_by() -> None:
    row = np.array([1, 3, 2, 0], np.float32)
    params = _but(top_k=2, temperature=0.5, n_probs=9, post_sampling_probs=True)
    sampled = Sampler(params).choose(row)
    expected = {1: 1 / (1 + math.exp(-2)), 2: 1 / (1 + math.exp(2))}
    assert sampled.logprobs is not None and sampled.token is not None
    assert {token: math.exp(logprob) for token, logprob in sampled.logprobs.top} == pytest.approx(expected)
    assert math.exp(sampled.logprobs.chosen) == pytest.approx(expected[sampled.token])
    assert Sampler(_but(params, n_probs=-1)).choose(row).logprobs is None


def test_biases_are_gone_from_the_rows_after_the_choice() -> None:
    """The rows are the engine's memory; others may read them."""
    rows = np.array([[1, 2, 3], [3, 2, 1]], np.float32)
    before = rows.copy()
    samplers = [Sampler(SamplingParams(temperature=t, logit_bias=((0, 9.0), (2, float("-inf"))))) for t in (0.0, 0.8)]
    assert [sampled.token for sampled in choose_all(rows, samplers)] == [0, 0]
    assert np.array_equal(rows, before)


@pytest.mark.parametrize("size", [50, 20_000])
def test_a_row_that_is_not_a_number_is_nobody_elses_problem(size: int) -> None:
    rows = np.random.default_rng(1).normal(size=(3, size)).astype(np.float32)
    expected = [sampled.token for sampled in choose_all(rows, [Sampler(SamplingParams(seed=n)) for n in range(3)])]
    rows[1, ::7] = np.nan
    chosen = [sampled.token for sampled in choose_all(rows, [Sampler(SamplingParams(seed=n)) for n in range(3)])]
    assert (chosen[0], chosen[2]) == (expected[0], expected[2])
    assert not np.isnan(rows[1, chosen[1]])
    choose_all(np.full((2, size), np.nan, np.float32), [Sampler(SamplingParams(seed=n)) for n in range(2)])
