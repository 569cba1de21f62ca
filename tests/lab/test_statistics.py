from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock_lab.statistics import Estimate, in_words, median, number, percentile, ratio_of_medians

_VALUES = st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=60)
_FACTORS = st.floats(0.01, 100)


@given(_VALUES)
def test_the_interval_contains_the_median_and_lies_within_the_values(values: list[float]) -> None:
    found = median(values)
    assert found.value == pytest.approx(statistics.median(values))
    assert min(values) * 0.999999 <= found.low <= found.value * 1.000001
    assert found.value * 0.999999 <= found.high <= max(values) * 1.000001
    assert found.count == len(values)


@given(_VALUES, _VALUES)
def test_the_same_values_always_give_the_same_interval(values: list[float], base: list[float]) -> None:
    assert median(values) == median(values)
    assert ratio_of_medians(values, base) == ratio_of_medians(values, base)


@given(_VALUES, _VALUES, _FACTORS)
def test_a_ratio_scales_with_its_values(values: list[float], base: list[float], factor: float) -> None:
    once, more = ratio_of_medians(values, base), ratio_of_medians([value * factor for value in values], base)
    assert [more.value, more.low, more.high] == pytest.approx(
        [part * factor for part in (once.value, once.low, once.high)]
    )
    assert once.low * 0.999999 <= once.value <= once.high * 1.000001


@given(_VALUES)
def test_equal_samples_show_no_difference(values: list[float]) -> None:
    found = ratio_of_medians(values, values)
    assert found.value == 1.0
    assert found.low <= 1 <= found.high
    assert "no difference shown" in in_words(found) or "too few" in in_words(found)


@given(_VALUES, st.floats(0, 100))
def test_percentiles_lie_within_the_values(values: list[float], percent: float) -> None:
    assert min(values) * 0.999999 <= percentile(values, percent) <= max(values) * 1.000001


def test_a_ratio_in_words_says_whether_a_difference_is_shown() -> None:
    assert in_words(Estimate(8.123, 7.4, 9.01, 20)) == "8.12 times as long (95 % interval 7.40 to 9.01)"
    assert in_words(Estimate(0.5, 0.4, 0.6, 20), "as much") == "0.500 times as much (95 % interval 0.400 to 0.600)"
    assert in_words(Estimate(1.2, 0.9, 1.4, 20)).endswith("that includes 1: no difference shown)")
    assert in_words(Estimate(8.0, 8.0, 8.0, 1)) == "8.00 times as long, but 1 of each are too few for an interval"


def test_invalid_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        median([])
    with pytest.raises(ValueError, match="positive"):
        ratio_of_medians([1.0, 0.0], [1.0])
    with pytest.raises(ValueError, match="positive"):
        ratio_of_medians([1.0], [-1.0])


def test_numbers_have_at_least_three_significant_digits() -> None:
    assert [number(value) for value in (0, 0.01234, 1.0, 12.345, 123.45, 12345.6)] == [
        *("0", "0.0123", "1.00", "12.3", "123", "12346"),
    ]
