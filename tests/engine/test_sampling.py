from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from paddock.engine.sampling import sample, uniform
from paddock.types import SamplingParams

_logits = npst.arrays(np.float32, st.integers(1, 60), elements=st.floats(-30, 30, width=32))
_params = st.builds(
    SamplingParams,
    temperature=st.floats(0, 3),
    top_k=st.integers(-1, 70),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    seed=st.integers(0, 2**64 - 1),
)


def _reference(logits: np.ndarray[tuple[int], np.dtype[np.float32]], params: SamplingParams, drawn: int) -> int:
    """The same, written as slowly and plainly as possible."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if params.temperature <= 0:
        return order[0]
    if params.top_k > 0:
        order = order[: params.top_k]

    def softmax(temperature: float) -> list[float]:
        weights = [float(np.exp((float(logits[i]) - float(logits[order[0]])) / temperature)) for i in order]
        return [weight / sum(weights) for weight in weights]

    weights, total, keep = softmax(1), 0.0, 0
    if params.top_p < 1:
        while keep < len(order):
            total += weights[keep]
            keep += 1
            if total >= params.top_p:
                break
        order, weights = order[:keep], weights[:keep]
    order = [i for i, weight in zip(order, weights, strict=True) if weight >= params.min_p * weights[0]]
    weights = softmax(params.temperature)
    point, total = uniform(params.seed or 0, drawn), 0.0
    for i, weight in zip(order, weights, strict=True):
        total += weight
        if point < total:
            return i
    return order[-1]


@given(_logits, _params, st.integers(0, 1000))
def test_it_agrees_with_a_plain_reference(
    logits: np.ndarray[tuple[int], np.dtype[np.float32]], params: SamplingParams, drawn: int
) -> None:
    rounded = np.round(logits, 1).astype(np.float32)
    if params.temperature < 0.05:
        params = SamplingParams(temperature=0)
    # At the edge of a threshold float rounding decides; a nudge of the draw's place must then make them agree.
    mine = {sample(rounded, params, drawn + n) for n in range(5)}
    theirs = {_reference(rounded, params, drawn + n) for n in range(5)}
    assert mine & theirs


def test_greedy_takes_the_first_of_the_largest() -> None:
    logits = np.array([0, 3, 3, 1], np.float32)
    assert sample(logits, SamplingParams(temperature=0), 0) == 1
    assert sample(logits, SamplingParams(top_k=1), 0) == 1


def test_draws_follow_the_distribution() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    params = SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0, seed=7)
    counts = Counter(sample(logits, params, n) for n in range(20_000))
    assert [counts[i] / 20_000 for i in range(3)] == pytest.approx([0.5, 0.3, 0.2], abs=0.015)


def test_a_draw_depends_on_seed_and_place_alone() -> None:
    assert uniform(1, 2) == uniform(1, 2)
    assert len({uniform(seed, n) for seed in range(50) for n in range(50)}) == 2500
    values = [uniform(3, n) for n in range(10_000)]
    assert min(values) >= 0
    assert max(values) < 1
    assert np.mean(values) == pytest.approx(0.5, abs=0.02)
