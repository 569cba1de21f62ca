"""Mirostat and XTC choose the same tokens as with an ordered vocabulary, which they do not order."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine import candidates, filters, mirostat
from paddock.engine.candidates import FEW, Candidates, Logits
from paddock.engine.sampler import Sampler
from paddock.types import SamplingParams
from tests.engine.sampling import changed
from tests.tiers import examples

_mirostat = st.builds(
    changed,
    mirostat=st.sampled_from([1, 2]),
    mirostat_tau=st.sampled_from([0.0, 0.5, 3.0, 5.0, 10.0, 40.0, 1e300]),
    mirostat_eta=st.sampled_from([0.0, 0.1, 1.0, 1e300]),
    temperature=st.sampled_from([0.0, 0.3, 0.8, 1.0, 5.0, 1e300]),
    seed=st.integers(0, 2**32),
)
_xtc = st.builds(
    changed,
    xtc_probability=st.sampled_from([0.5, 1.0]),
    xtc_threshold=st.sampled_from([0.0, 1e-12, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.6]),
    temperature=st.sampled_from([0.0, 0.3, 0.8, 1.0, 5.0, 1e300]),
    dynatemp_range=st.sampled_from([0.0, 0.0, 0.3]),
    top_n_sigma=st.sampled_from([-1.0, -1.0, 1.0, 3.0]),
    min_keep=st.sampled_from([0, 5, 10**6]),
    n_probs=st.sampled_from([-1, -1, 2]),
    post_sampling_probs=st.booleans(),
    samplers=st.sampled_from([SamplingParams().samplers, ("temperature", "xtc"), ("xtc",), ("xtc", "min_p")]),
    logit_bias=st.lists(st.tuples(st.integers(0, 99), st.sampled_from([-np.inf, 4.0])), max_size=4).map(tuple),
    seed=st.integers(0, 2**32),
)


@st.composite
def _rows(draw: st.DrawFn) -> list[Logits]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = draw(st.sampled_from([3000, 20_000, FEW + 1, FEW]))
    rows: Logits = rng.normal(0, draw(st.sampled_from([0.0, 0.5, 3.0, 20.0])), (6, size)).astype(np.float32)
    rows[:, : draw(st.integers(0, 5))] += draw(st.sampled_from([3, 12]))
    if draw(st.booleans()):
        rows = np.round(rows)  # with many equal logits
    if draw(st.booleans()):
        rows[:, rng.random(size) < draw(st.sampled_from([0.1, 0.999]))] = -np.inf
    return list(rows)


def _choose(params: SamplingParams, rows: list[Logits]) -> list[Any]:
    sampler = Sampler(params)
    with np.errstate(all="ignore"):
        chosen = [sampler.choose(row.copy()) for row in rows]
    return [[(one.token, one.logprobs, one.error is None) for one in chosen], sampler.drawn, repr(sampler._surprise)]


def _choose_ordered(params: SamplingParams, rows: list[Logits]) -> list[Any]:
    with ExitStack() as stack:
        for module in (candidates, filters, mirostat):
            stack.enter_context(patch.object(module, "FEW", 10**9))
        return _choose(params, rows)


@examples(1500)
@given(_mirostat | _xtc, _rows())
def test_the_tokens_are_those_of_ordered_candidates(params: SamplingParams, rows: list[Logits]) -> None:
    assert _choose(params, rows) == _choose_ordered(params, rows)


@pytest.mark.parametrize(
    "settings",
    [
        {"mirostat": 1, "mirostat_tau": 3.0},
        {"mirostat": 2, "mirostat_tau": 5.0},
        {"mirostat": 2, "temperature": 0.0},
        {"xtc_probability": 1.0, "xtc_threshold": 0.05},
    ],
    ids=str,
)
def test_the_vocabulary_is_not_ordered(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    params = changed(seed=1, **settings)
    rows = list(np.random.default_rng(1).normal(0, 3, (20, 30_000)).astype(np.float32))
    expected = _choose_ordered(params, rows)
    ordered: list[int] = []
    order = Candidates.order

    def count(self: Candidates) -> Any:
        ordered.append(0 if self.ordered else len(self.ids))
        return order(self)

    monkeypatch.setattr(Candidates, "order", count)
    assert _choose(params, rows) == expected
    assert max(ordered, default=0) < 5000
