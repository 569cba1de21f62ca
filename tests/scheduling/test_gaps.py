"""Gaps between the streams of answers: closed where the passes that are saved cost more than the copies."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling.budget import StepBudget
from paddock.scheduling.gaps import Move, count_gaps, seconds_of, worth_making
from paddock.scheduling.request import Request
from paddock.types import Fork
from tests.scheduling.harness import Harness

Streams = st.sets(st.integers(0, 12), min_size=2, max_size=8)


@st.composite
def _moves(draw: st.DrawFn) -> tuple[set[int], list[Move]]:
    """Answers, and moves of the last one into the first gap, until there is none or something is in the way."""
    streams = draw(Streams)
    left, moves = set(streams), []
    while count_gaps(left) and draw(st.integers(0, 9)):
        target = min(set(range(min(left), max(left))) - left)
        moves.append(Move(max(left), target, None, draw(st.floats(0, 10))))
        left = left - {max(left)} | {target}
    return streams, moves


@given(_moves(), st.integers(0, 1000), st.floats(0.001, 1.0))
def test_no_other_number_of_moves_costs_less(
    case: tuple[set[int], list[Move]], steps: int, pass_seconds: float
) -> None:
    streams, moves = case
    price: dict[str, Any] = {"steps": steps, "pass_seconds": pass_seconds}
    made = worth_making(moves, streams, **price)
    costs = [seconds_of(moves[:count], streams, **price) for count in range(len(moves) + 1)]
    assert list(made) == moves[: len(made)]
    assert seconds_of(made, streams, **price) == min(costs) <= seconds_of(moves, streams, **price)


@given(_moves(), st.integers(0, 1000))
def test_all_gaps_are_closed_while_prices_are_unknown(case: tuple[set[int], list[Move]], steps: int) -> None:
    streams, moves = case
    assert list(worth_making(moves, streams, steps=steps, pass_seconds=0.0)) == moves
    free = [Move(move.source, move.target, move.aside, 0.0) for move in moves]
    assert count_gaps(streams) == 0 or list(worth_making(free, streams, steps=steps, pass_seconds=1.0)) == free


@given(st.integers(1, 400), st.integers(1, 400), st.floats(0, 300))
def test_without_knowing_the_end_a_gap_costs_at_most_twice_what_is_best(length: int, limit: int, price: float) -> None:
    """And one further pass. A pass takes a second."""
    answers = [Request(id, [0], None, limit) for id in range(2)]
    length, spent, is_closed = min(length, limit), 0.0, False
    for _ in range(1, length):
        for answer in answers:
            answer.tokens = [*answer.tokens, 0]
        steps = min(answer.expected_left for answer in answers)
        if not is_closed and worth_making([Move(3, 1, None, price)], [0, 3], steps=steps, pass_seconds=1.0):
            spent, is_closed = spent + price, True
        spent += not is_closed
    assert spent <= 2 * min(price, length) + 1


def residents(**options: Any) -> Harness:
    """A finished sequence in each of four streams, and known prices: a token takes a tenth of a pass."""
    harness = Harness(kv_unified=False, parallel=4, **options)
    for id in range(4):
        harness.ask(id, f"{id}" * 60, max_tokens=1)
        harness.run()
    assert sorted(harness.scheduler.cache.resident) == [0, 1, 2, 3]
    prices = harness.scheduler.prices
    for size in (100, 1000, 10_000):
        prices.prefill.observe(size, size * 0.001)
    for answers in (1, 2, 1, 2):
        harness.scheduler._budget.observe(answers=answers, chunks=[], seconds=0.01 + 0.001 * answers)
    return harness


@pytest.mark.parametrize(("limit", "is_kept"), [(3, True), (200, False)])
def test_a_resident_between_two_short_answers_stays(limit: int, is_kept: bool) -> None:
    """Its tokens would be lost: 61 of them take six times as long to compute as a pass. On a CPU."""
    harness = residents(cache_ram_bytes=0)
    for id in (0, 3):
        harness.ask(10 + id, f"{id}" * 60 + "? more", max_tokens=limit)
    forks = []
    while harness.scheduler.running or harness.scheduler.queued:
        plan = harness.step()
        assert plan is not None
        forks += [operation for operation in plan.operations if isinstance(operation, Fork)]
    assert (not forks) == is_kept
    again = harness.ask(20, "1" * 60, max_tokens=1)
    harness.run()
    assert (again.cached >= 60) == is_kept


def test_a_gap_is_closed_at_once_where_that_loses_nothing() -> None:
    harness = residents(cache_ram_bytes=0, n_gpu_layers=-1)
    for sequence in (1, 2):
        harness.scheduler.cache.reclaim(sequence)
    for id in (0, 3):
        harness.ask(10 + id, f"{id}" * 60 + "? more", max_tokens=3)
    forks = []
    while harness.scheduler.running or harness.scheduler.queued:
        plan = harness.step()
        assert plan is not None
        forks += [operation for operation in plan.operations if isinstance(operation, Fork)]
    assert [(fork.source, fork.target) for fork in forks] == [(3, 1)]
    harness.run()


@given(st.floats(0.001, 0.1), st.floats(0.0, 0.05), st.integers(1, 60))
def test_steps_with_gaps_do_not_raise_what_one_pass_is_thought_to_take(once: float, each: float, steps: int) -> None:
    budget = StepBudget()
    for answers in (1, 2, 4, 1, 2):
        budget.observe(answers=answers, chunks=[], seconds=once + each * answers)
    for _ in range(steps):
        budget.observe(answers=2, chunks=[], seconds=2 * once + 2 * each, gaps=1)
    assert (once + each) * 0.9 <= budget.generating(2) <= (once + 2 * each) * 1.1


def test_with_gaps_only_a_pass_takes_an_equal_part() -> None:
    budget = StepBudget()
    for _ in range(40):
        budget.observe(answers=2, chunks=[], seconds=0.02, gaps=1)
    assert budget.generating(2) == pytest.approx(0.01, rel=0.1)
