"""Top-p and min-p without top-k, for several rows at once, against the sampler that sorts everything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.batch_sampler import BatchSampler
from paddock.engine.candidates import Logits
from paddock.engine.near_best import limits_of, near_best
from paddock.engine.sampler import Sampler
from paddock.types import SamplingParams
from tests.engine.reference_sampler import ReferenceSampler
from tests.engine.sampling import choose_all
from tests.tiers import examples

_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 0.8, 1.5]),
    top_k=st.sampled_from([0, -1]),
    top_p=st.sampled_from([0.0, 0.3, 0.9, 0.95, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 1e-9, 0.01, 0.05, 0.5, 1.0]),
    seed=st.integers(0, 2**64 - 1),
)


@st.composite
def _rows(draw: st.DrawFn, count: int) -> Logits:
    """A few likely tokens and a long tail, as from a model, or all alike. Some tokens may be forbidden."""
    size = draw(st.sampled_from([20, 1000, 1024, 1500, 4097, 20_000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows: Logits = rng.normal(draw(st.sampled_from([-80, 0, 25, 90])), 2, (count, size)).astype(np.float32)
    likely = rng.integers(0, size, (count, 15))
    np.put_along_axis(
        rows, likely, rows.max() + draw(st.sampled_from([-8, 0, 8])) - rng.exponential(3, likely.shape), axis=1
    )
    if draw(st.booleans()):
        rows[rng.random(rows.shape) < draw(st.sampled_from([0.1, 0.999]))] = -np.inf
    if draw(st.booleans()):
        rows = np.round(rows)  # with many equal logits
    return rows


@examples(200)
@given(st.data(), st.lists(_params, min_size=1, max_size=6))
def test_tokens_are_those_of_the_reference(data: st.DataObject, requests: list[SamplingParams]) -> None:
    rows = data.draw(_rows(len(requests)))
    expected = [ReferenceSampler(params).choose(row) for params, row in zip(requests, rows, strict=True)]
    chosen = choose_all(rows, [Sampler(params) for params in requests])
    assert [sampled.token for sampled in chosen] == expected


@examples(100)
@given(_rows(1), _params)
def test_the_same_tokens_stay(rows: Logits, params: SamplingParams) -> None:
    if not Sampler(params).is_unlimited:
        return
    with np.errstate(all="ignore"):  # as in the batch
        found = near_best(rows, [0], limits_of([params]))
    if not found.kept[0]:
        return
    order = np.argsort(-rows[0], kind="stable")
    weights = np.exp(rows[0][order].astype(np.float64) - rows.max())
    kept = len(order)
    if params.top_p < 1:
        kept = int(np.searchsorted(weights.cumsum() / weights.sum(), params.top_p)) + 1
    if params.min_p > 0:
        kept = min(kept, int(np.count_nonzero(rows >= rows.max() + np.log(params.min_p))))
    assert found.ids[0, : found.kept[0]].tolist() == order[:kept].tolist()


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_row_without_a_best_token_affects_no_other(broken: float) -> None:
    """The row is sampled on its own, as if it were alone."""
    rng = np.random.default_rng(1)
    rows = rng.normal(0, 4, (3, 5000)).astype(np.float32)
    rows[1, slice(None) if broken == -np.inf else 7] = broken
    params = SamplingParams(top_k=0, seed=5)
    together = BatchSampler([Sampler(params) for _ in rows]).choose(rows.copy())
    alone = [Sampler(params).choose(row) for row in rows]
    assert [sampled.token for sampled in together] == [sampled.token for sampled in alone]
    assert (together[1].error is None) == (alone[1].error is None)


def test_rows_of_a_model_are_decided_together() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(-10, 2, (8, 50_000)).astype(np.float32)
    rows[:, :20] = rows.max() + 8 - np.arange(20)
    for params in (SamplingParams(top_k=0), SamplingParams(top_k=0, top_p=1.0), SamplingParams(top_k=0, min_p=0.0)):
        assert near_best(rows, list(range(8)), limits_of([params] * 8)).kept.min() > 0
