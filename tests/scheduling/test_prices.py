"""Prices: what copies and tokens cost, learnt from measured times."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling import Price, Prices
from tests.scheduling.harness import CUT, Harness

Amounts = st.lists(st.integers(1, 1 << 30), min_size=3, max_size=40)
MB = 1 << 20


def priced(per_unit: float, fixed: float, *amounts: int) -> Price:
    price = Price()
    for amount in amounts:
        price.observe(amount, fixed + per_unit * amount)
    return price


def test_nothing_is_known_before_the_first_observation() -> None:
    price = Price()
    price.observe(0, 1.0)
    price.observe(5, 0.0)
    assert (price.observed, price.per_unit, price.fixed, price.per_second) == (0, 0.0, 0.0, 0.0)
    assert price.seconds(100) == 0.0
    assert price.amount(1.0) == 0


@given(Amounts, st.floats(1e-12, 1e-3))
def test_a_constant_rate_is_found(amounts: list[int], rate: float) -> None:
    price = priced(rate, 0.0, *amounts)
    assert price.per_unit == pytest.approx(rate, rel=1e-3)
    assert price.seconds(max(amounts)) == pytest.approx(rate * max(amounts), rel=1e-2)


@given(Amounts, st.lists(st.floats(1e-9, 100.0), min_size=40, max_size=40))
def test_whatever_was_seen_prices_are_finite_and_grow_with_the_amount(amounts: list[int], seconds: list[float]) -> None:
    price = Price()
    for amount, taken in zip(amounts, seconds, strict=False):
        price.observe(amount, taken)
    assert price.per_unit > 0
    assert price.fixed >= 0
    assert 0 < price.seconds(10) <= price.seconds(1000)
    assert price.amount(price.seconds(1 << 20)) == pytest.approx(1 << 20, rel=1e-2, abs=1)


def test_a_fixed_part_is_told_from_the_rate() -> None:
    price = priced(1e-9, 0.001, MB, 16 * MB, 4 * MB, 32 * MB)
    assert price.per_unit == pytest.approx(1e-9, rel=0.01)
    assert price.fixed == pytest.approx(0.001, rel=0.01)
    assert price.amount(0.011) == pytest.approx(10_000_000, rel=0.01)


def test_old_observations_fade() -> None:
    price = priced(1e-9, 0.0, *[MB] * 20)
    for _ in range(60):
        price.observe(MB, MB * 4e-9)
    assert price.per_unit == pytest.approx(4e-9, rel=0.05)


def test_one_interruption_counts_little() -> None:
    price = priced(1e-9, 0.0, *[MB] * 20)
    price.observe(MB, 10.0)
    assert price.per_unit < 1.5e-9


def test_parts_take_about_the_time_of_a_step() -> None:
    prices = Prices()
    assert prices.save_tokens(1000, 7) == 7
    assert prices.restore_tokens(1000, 9) == 9
    prices.save = priced(1e-9, 0.0, MB, 2 * MB, 4 * MB)
    prices.restore = priced(2e-9, 0.0, MB, 2 * MB, 4 * MB)
    assert prices.save_tokens(1000, 7) == pytest.approx(4000, rel=0.01)
    assert prices.restore_tokens(1000, 9) == pytest.approx(7500, rel=0.01)
    prices.generating = 0.1
    assert prices.save_tokens(1000, 7) == pytest.approx(50_000, rel=0.01)
    assert prices.restore_tokens(1000, 9) == pytest.approx(50_000, rel=0.01)
    assert prices.restore_tokens(1 << 30, 9) == 64


def test_a_restore_that_is_slower_than_computing_is_refused_and_sometimes_tried() -> None:
    prices = Prices()
    assert prices.is_worth_restoring(100, 100 * MB)
    prices.prefill = priced(0.001, 0.0, 16, 32, 64)
    prices.restore = priced(1e-9, 0.0, MB, 2 * MB, 4 * MB)
    assert prices.is_worth_restoring(100, 50 * MB)
    assert not prices.is_worth_restoring(100, 150 * MB)
    answers = [prices.is_worth_restoring(100, 150 * MB) for _ in range(64)]
    assert answers.count(True) == 4
    assert prices.is_worth_restoring(100, 50 * MB, on_disk=50 * MB)
    prices.disk_read = priced(2e-9, 0.0, MB, 2 * MB, 4 * MB)
    assert prices.restore_saves(100, 50 * MB, on_disk=50 * MB) < 0
    assert prices.restore_saves(100, 50 * MB) > 0


def test_a_small_copy_is_refused_where_its_fixed_part_costs_more_than_its_tokens() -> None:
    prices = Prices()
    prices.prefill = priced(0.0001, 0.0, 16, 32, 64)
    prices.restore = priced(1e-9, 0.05, MB, 16 * MB, 32 * MB)
    assert not prices.is_worth_restoring(10, 10_000)
    assert prices.is_worth_restoring(400, 400_000), "a loss of 10 ms is within the error of the prices"
    assert prices.is_worth_restoring(1000, 1_000_000)


def test_a_long_copy_waits_for_a_longer_silence() -> None:
    prices = Prices()
    assert prices.silence_before_save(1 << 30) == 0.0
    prices.save = priced(1e-9, 0.0, MB, 2 * MB, 4 * MB)
    assert prices.silence_before_save(2 * 10**9) == pytest.approx(8.0, rel=0.02)
    assert prices.silence_before_save(2 * 10**12) == 15.0, "the estimate may be wrong"


def test_the_first_short_copy_says_nothing_about_a_long_one() -> None:
    prices = Prices()
    prices.save.observe(300, 0.002)  # two tokens, and all that is done once
    assert prices.silence_before_save(60_000_000) == 0.0
    assert prices.is_worth_saving(400, 60_000_000, waiting=8)


@pytest.mark.parametrize("kv_unified", [True, False])
def test_a_scheduler_computes_what_is_slower_to_restore(kv_unified: bool) -> None:
    harness = Harness(kv_unified=kv_unified)
    text = "a shared prefix " * 6

    def cached(id: int) -> int:
        request = harness.ask(id, text, max_tokens=3)
        harness.run()
        harness.scheduler.write_back()
        for sequence in list(harness.scheduler.cache.resident):
            harness.scheduler.cache.reclaim(sequence)
        return request.cached

    assert cached(1) == 0
    assert cached(2) > 0
    prices = harness.scheduler.prices
    prices.prefill, prices.restore = priced(1e-6, 0.0, 16, 32, 64), priced(1.0, 0.0, 1, 2, 4)
    assert cached(3) == 0
    prices.restore = priced(1e-12, 0.0, 1, 2, 4)
    assert cached(4) > 0


@pytest.mark.parametrize("kv_unified", [True, False])
@pytest.mark.parametrize("memory", [False, CUT])
def test_what_is_faster_to_compute_is_not_copied_to_host_memory(kv_unified: bool, memory: object) -> None:
    """But sometimes, to measure the prices again. It is still found in cells."""
    harness = Harness(kv_unified=kv_unified, whole=memory)
    prices = harness.scheduler.prices
    prices.prefill, prices.restore = priced(1e-6, 0.0, 16, 32, 64), priced(1.0, 0.0, 1, 2, 4)
    is_copied = []
    for id in range(32):
        prices.prefill = priced(1e-6, 0.0, 16, 32, 64)
        harness.ask(id, f"{id:02}" * 20, max_tokens=1)
        harness.run()
        again = harness.ask(100 + id, f"{id:02}" * 20 + "?", max_tokens=1)
        harness.run()
        assert again.cached >= 40
        is_copied.append(harness.scheduler.cache.stored > 0)
        harness.scheduler.cache.clear()
    assert 0 < is_copied.count(True) <= 4


@given(
    st.floats(1e-12, 1e-8), st.floats(1e-12, 1e-8), st.floats(1e-6, 1e-2), st.integers(1, 1 << 15), st.integers(1, 32)
)
def test_a_copy_that_others_wait_for_is_made_if_they_lose_less_than_is_gained(
    saving: float, restoring: float, computing: float, tokens: int, waiting: int
) -> None:
    size = tokens << 17
    prices = Prices(
        prefill=priced(computing, 0.0, 500, 900, 2000),
        save=priced(saving, 0.0, MB, 9 * MB, 64 * MB),
        restore=priced(restoring, 0.0, MB, 9 * MB, 64 * MB),
    )
    is_worth = prices.is_worth_saving(tokens, size, waiting=waiting)
    if is_worth:
        assert prices.is_worth_saving(tokens, size, waiting=1)
        loss, gain = waiting * prices.save.seconds(size), prices.prefill.per_unit * tokens
        assert loss <= gain


@given(st.lists(st.tuples(st.floats(0.0, 0.06), st.floats(0.0, 2.0)), max_size=60))
def test_copies_that_go_unnoticed_take_a_small_part_of_the_time(events: list[tuple[float, float]]) -> None:
    prices, copying, running = Prices(save=priced(1e-9, 0.0, MB, 9 * MB, 64 * MB)), 0.0, 0.0
    for seconds, step in events:
        if prices.goes_unnoticed(int(seconds * 1e9)):
            copying += seconds
            assert copying <= 0.0501 + 0.0501 * running
        prices.pass_time(step)
        running += step
    prices.pass_time(math.inf)
    assert prices.goes_unnoticed(49_000_000), "nothing runs"
    assert not prices.goes_unnoticed(49_000_000), "and others wait for the first"


def test_everything_is_saved_until_a_copy_was_measured() -> None:
    assert Prices().is_worth_saving(30_000, 4 << 30, waiting=16)


def test_a_part_is_large_enough_for_what_every_copy_costs() -> None:
    prices = Prices(save=priced(1e-10, 0.006, MB, 16 * MB, 64 * MB), generating=0.005)
    assert prices.save_tokens(MB, 1) * MB * 1e-10 >= 0.005
    assert prices.save_tokens(MB, 1, is_idle=True) > prices.save_tokens(MB, 1)
