from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.tally import MOMENTS, WAITS, Histogram, Tally

_values = st.lists(st.tuples(st.floats(0, 20), st.integers(1, 5)))


@given(_values)
def test_a_bucket_counts_values_up_to_its_bound(values: list[tuple[float, int]]) -> None:
    histogram = Histogram.of(MOMENTS)
    for value, times in values:
        histogram.observe(value, times)
    for index, bound in enumerate(MOMENTS):
        assert sum(histogram.counts[: index + 1]) == sum(times for value, times in values if value <= bound)
    assert histogram.count == sum(times for _, times in values)
    assert histogram.sum == pytest.approx(sum(value * times for value, times in values))


@given(_values, _values)
def test_the_sum_of_tallies_is_the_tally_of_all_values(
    some: list[tuple[float, int]], more: list[tuple[float, int]]
) -> None:
    apart, beside, together = Tally(prompt_tokens=1), Tally(prompt_tokens=2), Tally(prompt_tokens=3)
    for tally, values in ((apart, some), (beside, more), (together, some + more)):
        for value, times in values:
            tally.inter_token_seconds.observe(value, times)
    apart.add(beside)
    assert apart.prompt_tokens == together.prompt_tokens
    assert apart.inter_token_seconds.counts == together.inter_token_seconds.counts
    assert apart.inter_token_seconds.sum == pytest.approx(together.inter_token_seconds.sum)


def test_a_tally_survives_the_wire() -> None:
    tally = Tally(generated_tokens=5)
    tally.queue_seconds.observe(0.3)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(tally), type=Tally) == tally
    assert Tally().queue_seconds.bounds == WAITS


def test_histograms_with_different_bounds_cannot_be_added() -> None:
    with pytest.raises(AssertionError, match="different bounds"):
        Histogram.of(MOMENTS).add(Histogram.of(WAITS))
