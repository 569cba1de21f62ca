from __future__ import annotations

import random
import statistics
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock_lab.bench.lengths import Length, poisson

_SEEDS = st.integers(0, 2**32)


@given(st.integers(1, 10**6), _SEEDS)
def test_a_plain_number_is_constant(tokens: int, seed: int) -> None:
    assert Length(tokens).draw(random.Random(seed)) == Length(str(tokens)).draw(random.Random(seed)) == tokens


@given(st.integers(1, 1000), st.integers(0, 1000), _SEEDS)
def test_uniform_lengths_lie_within_their_range(least: int, more: int, seed: int) -> None:
    rng, length = random.Random(seed), Length(f"uniform:{least}-{least + more}")
    assert all(least <= length.draw(rng) <= least + more for _ in range(50))


@given(st.integers(100, 2000), st.floats(0.05, 1.0), _SEEDS)
def test_lognormal_lengths_have_the_given_median(middle: int, sigma: float, seed: int) -> None:
    rng, length = random.Random(seed), Length(f"lognormal:{middle},{sigma:.3f}")
    drawn = [length.draw(rng) for _ in range(400)]
    assert min(drawn) >= 1
    assert 0.3 < statistics.mean(each > middle for each in drawn) < 0.7


@given(st.sampled_from(["64", "uniform:10-90", "lognormal:50,0.4"]), st.floats(0.01, 1.0), _SEEDS)
def test_scale_shortens_the_same_lengths(written: str, scale: float, seed: int) -> None:
    whole, scaled = (Length(written).draw(random.Random(seed), factor) for factor in (1.0, scale))
    assert 1 <= scaled <= whole
    assert Length(written).draw(random.Random(seed)) == whole


@pytest.mark.parametrize("written", ["0", "-5", "uniform:9-3", "uniform:0-3", "lognormal:5", "many", "", "1.5"])
def test_an_invalid_length_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="length"):
        Length(written)


@given(st.floats(0.1, 500), _SEEDS)
def test_arrivals_increase_and_have_the_given_rate(rate: float, seed: int) -> None:
    times = list(islice(poisson(rate, random.Random(seed)), 2000))
    assert times[0] > 0 and all(later > earlier for earlier, later in pairwise(times))
    assert 0.8 < len(times) / times[-1] / rate < 1.25
    assert times == list(islice(poisson(rate, random.Random(seed)), 2000))
