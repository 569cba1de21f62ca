"""The fast samplers choose the same tokens as one that sorts everything and keeps nothing between tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine import sampler_table
from paddock.engine.batch_sampler import BatchSampler
from paddock.engine.candidates import Candidates, Logits
from paddock.engine.penalties import Changes, Penalized
from paddock.engine.sampler import Sampler
from paddock.engine.sampler_table import SAMPLERS, Entry
from paddock.types import SamplerName, SamplingParams
from tests.engine.reference_sampler import ReferenceSampler
from tests.engine.sampling import NAMES, adjusted, changed, choose_all, unusual_params, usual_params
from tests.tiers import examples

_BREAKERS = frozenset([5])
_texts = st.lists(st.integers(0, 7), max_size=30) | st.builds(
    lambda unit, times: unit * times, st.lists(st.integers(0, 7), min_size=1, max_size=4), st.integers(1, 12)
)
_params = usual_params | unusual_params() | unusual_params(top_k=st.just(0), dry_base=st.sampled_from([1.0, 1.75]))
_penalized = st.builds(
    changed,
    usual_params,
    repeat_penalty=st.sampled_from([1.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    repeat_last_n=st.sampled_from([-1, 3, 64]),
    dry_multiplier=st.sampled_from([0.0, 0.8]),
    dry_penalty_last_n=st.sampled_from([-1, 3, 64]),
    temperature=st.sampled_from([0.0, 0.8]),
)


@st.composite
def _rows(draw: st.DrawFn, count: int) -> Logits:
    """As many logits as are not ordered at once, and few enough. Tokens of the texts are likely."""
    size = draw(st.sampled_from([8, 300, 3000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows: Logits = rng.normal(0, draw(st.sampled_from([0.5, 2, 4])), (5, count, size)).astype(np.float32)
    rows[:, :, :8] += draw(st.sampled_from([0, 5]))
    if draw(st.booleans()):
        rows = np.round(rows)  # with many equal logits
    return rows


@examples(200)
@given(st.data(), st.lists(st.tuples(_params | _penalized, _texts), min_size=1, max_size=4))
def test_tokens_are_those_of_the_reference(
    data: st.DataObject, requests: list[tuple[SamplingParams, list[int]]]
) -> None:
    steps = data.draw(_rows(len(requests)))
    batch = BatchSampler([Sampler(*request, breakers=lambda _: _BREAKERS) for request in requests])
    single = [Sampler(*request, breakers=lambda _: _BREAKERS) for request in requests]
    reference = [ReferenceSampler(*request, breakers=_BREAKERS) for request in requests]
    for rows in steps:
        expected = [sampler.choose(row) for sampler, row in zip(reference, rows, strict=True)]
        assert [sampled.token for sampled in batch.choose(rows.copy())] == expected
        before = rows.copy()
        assert [sampler.choose(row).token for sampler, row in zip(single, rows, strict=True)] == expected
        assert np.array_equal(rows, before), "biases and penalties are removed from the rows afterwards"


@examples(200)
@given(st.data(), st.lists(_penalized | unusual_params(), min_size=1, max_size=3), st.integers(1, 9))
def test_penalties_of_several_rows_change_the_same_bits(
    data: st.DataObject, settings: list[SamplingParams], count: int
) -> None:
    """Some rows have the same settings, others have penalties in another order, a bias, or none of these."""
    requests = [(data.draw(st.sampled_from(settings)), data.draw(_texts)) for _ in range(count)]
    samplers = [Sampler(*request, breakers=lambda _: _BREAKERS) for request in requests]
    single = [Sampler(*request, breakers=lambda _: _BREAKERS) for request in requests]
    rows = data.draw(_rows(count))[0]
    expected = [
        adjusted(sampler, row).tobytes()
        if sampler.is_greedy or sampler.is_batchable or sampler.is_unlimited
        else row.tobytes()
        for sampler, row in zip(single, rows, strict=True)
    ]
    BatchSampler(samplers)._adjust(rows.reshape(-1), rows.shape[1], [])
    assert [row.tobytes() for row in rows] == expected


@pytest.mark.parametrize("wrong", [-1, 10, 25])
def test_a_token_outside_of_the_vocabulary_fails_its_own_row_only(wrong: int) -> None:
    """Not the row whose logits follow in memory."""
    params = SamplingParams(repeat_penalty=1.5, temperature=0.0)
    rows = np.random.default_rng(0).normal(0, 1, (3, 10)).astype(np.float32)
    texts = [[1, 2], [3, wrong], [4, 5]]
    alone = [choose_all(rows[[n]], [Sampler(params, texts[n])])[0] for n in (0, 2)]
    first, failed, last = choose_all(rows.copy(), [Sampler(params, text) for text in texts])
    assert [first, last] == alone
    assert failed.error is not None and failed.error.code == "sampling_failed"
    biased = changed(params, logit_bias=((wrong, 3.0),))
    first, failed, last = choose_all(rows.copy(), [Sampler(params, [1, 2]), Sampler(biased), Sampler(params, [4, 5])])
    assert [first, last] == alone


def test_penalized_rows_are_sampled_in_the_batch() -> None:
    params = SamplingParams(repeat_penalty=1.2, dry_multiplier=0.8, seed=1)
    assert Sampler(params, [1, 2, 3]).is_batchable
    assert Sampler(changed(params, temperature=0.0), [1, 2, 3]).is_greedy
    late = changed(params, samplers=("top_k", "penalties", "top_p", "min_p", "temperature"))
    assert not Sampler(late).is_batchable


# ── one table ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_table_has_every_sampler() -> None:
    assert set(SAMPLERS) == set(get_args(SamplerName))


@pytest.mark.parametrize("kind", ["filter", "penalty"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_new_sampler_is_not_skipped_by_the_batch(
    kind: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is one that no request uses, with another meaning."""

    def keep_last(candidates: Candidates, *_: Any) -> None:
        candidates.take(candidates.ids == 9)

    class LiftLast:
        only_lowers = False

        def changes(self, logits: Logits, rows: Sequence[Penalized]) -> Changes:
            places = np.array([row.start + 9 for row in rows])
            return Changes(places, logits[places], np.full(len(rows), 1e3, np.float32))

    entry = Entry(lambda _: True, keep_last, keeps_best=False)
    if kind == "penalty":
        entry = Entry(lambda _: True, penalty=lambda _: LiftLast())
    monkeypatch.setattr(sampler_table, "SAMPLERS", SAMPLERS | {"adaptive_p": entry})
    monkeypatch.setattr("paddock.engine.sampler.SAMPLERS", SAMPLERS | {"adaptive_p": entry})
    rows = np.zeros((2, 10), np.float32)
    params = changed(SamplingParams(), temperature=temperature, seed=1, samplers=("adaptive_p", *NAMES))
    assert [sampled.token for sampled in choose_all(rows, [Sampler(params), Sampler(params)])] == [9, 9]
