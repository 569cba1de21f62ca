"""An error while a token is sampled ends only the request of that token."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.candidates import Logits
from paddock.engine.sampler import Sampler
from paddock.types import SamplingParams
from tests.engine.sampling import choose_all

_N_VOCAB = 24
_EVERY_TOKEN = tuple((token, -math.inf) for token in range(_N_VOCAB))
_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7]),
    top_k=st.sampled_from([0, 5, 40]),
    top_n_sigma=st.sampled_from([-1.0, 1.0]),
    typical_p=st.sampled_from([0.5, 1.0]),
    mirostat=st.sampled_from([0, 0, 1, 2]),
    repeat_penalty=st.sampled_from([1.0, 1.5]),
    dry_multiplier=st.sampled_from([0.0, 0.8]),
    n_probs=st.sampled_from([-1, 2]),
    seed=st.just(3),
)


class _Broken(Sampler):
    def choose(self, row: Logits) -> Any:
        raise ZeroDivisionError("on purpose")


def _rows(count: int) -> Logits:
    rows: Logits = np.random.default_rng(1).normal(0, 3, (count, _N_VOCAB)).astype(np.float32)
    return rows


@given(st.lists(_params, min_size=1, max_size=4), st.data())
def test_a_row_without_allowed_tokens_ends_only_its_request(params: list[SamplingParams], data: st.DataObject) -> None:
    failing = data.draw(st.integers(0, len(params) - 1))
    cause = data.draw(st.sampled_from(["logit_bias", "the model", "not a number"]))
    rows = _rows(len(params))
    expected = choose_all(rows.copy(), [Sampler(p, [1, 2, 1, 2]) for p in params])
    if cause == "logit_bias":
        params[failing] = msgspec.structs.replace(params[failing], logit_bias=_EVERY_TOKEN)
    else:
        rows[failing] = -np.inf if cause == "the model" else np.nan
    chosen = choose_all(rows, [Sampler(p, [1, 2, 1, 2]) for p in params])
    failed = chosen.pop(failing)
    del expected[failing]
    assert chosen == expected
    assert failed.token is None and failed.error is not None
    assert failed.error.code == ("constraint_failed" if cause == "logit_bias" else "decode_failed")
    assert cause != "logit_bias" or failed.error.param == "logit_bias"


@given(_params)
def test_tokens_with_nan_logits_are_never_chosen(params: SamplingParams) -> None:
    rows = _rows(1)
    rows[0, ::2] = np.nan
    (chosen,) = choose_all(rows, [Sampler(params)])
    assert chosen.error is None and chosen.token is not None and chosen.token % 2 == 1


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_an_exception_in_one_sampler_fails_only_its_request(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=5)
    special = msgspec.structs.replace(params, typical_p=0.5)
    rows = _rows(3)
    expected = choose_all(rows.copy(), [Sampler(params), Sampler(special), Sampler(params)])
    chosen = choose_all(rows, [Sampler(params), _Broken(special), Sampler(params)])
    assert [chosen[0], chosen[2]] == [expected[0], expected[2]]
    assert chosen[1].token is None and chosen[1].error is not None
    assert "ZeroDivisionError" in chosen[1].error.message


def test_a_failed_batch_is_repeated_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    params = [SamplingParams(seed=seed) for seed in range(4)]
    rows = _rows(4)
    expected = choose_all(rows.copy(), [Sampler(p) for p in params])

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("paddock.engine.batch_sampler.BatchSampler._filter_and_draw", fail)
    assert choose_all(rows, [Sampler(p) for p in params]) == expected
