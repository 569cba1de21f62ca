"""How long steps take whose chunks the budget chose, on simulated machines."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling import StepBudget
from paddock.scheduling.token_cost import TILE
from tests.scheduling.test_token_cost import X86, Machine

positions = st.integers(0, 6000)


def trained(machine: Machine, answering: float, *, answers: int = 3, unified: bool = False) -> StepBudget:
    """A budget that has seen a long prompt, small chunks beside answers, and answers."""
    budget = StepBudget(unified=unified)
    for start in range(0, 6144, 512):
        budget.observe(answers=answers, chunks=[], seconds=answering)
        budget.observe(answers=0, chunks=[(start, 512)], seconds=machine.seconds([(start, 512)]))
        small = [(start, 16)]
        budget.observe(answers=answers, chunks=small, seconds=answering + machine.seconds(small))
    return budget


def test_a_prompt_alone_gets_whole_batches() -> None:
    budget = StepBudget()
    assert budget.room(0) == 512
    assert budget.room(1) == 32
    budget.observe(answers=0, chunks=[(0, 512)], seconds=10)
    assert budget.room(0) is None
    assert budget.chunk(0, budget.seconds_for_prompts(0, 0), 512) == 512
    assert budget.chunk(0, math.inf, 2000) == 2000


@given(st.floats(0.0001, 0.05), st.floats(0.001, 1), st.integers(1, 32))
def test_a_step_with_generating_requests_stays_near_the_target(token: float, answering: float, answers: int) -> None:
    """On a machine where every token costs the same, whatever that is."""
    machine, budget = Machine(token, 0, 0), StepBudget()
    chunk = 32
    for _ in range(20):
        budget.observe(answers=answers, chunks=[], seconds=answering)
        budget.observe(answers=answers, chunks=[(0, chunk)], seconds=answering + machine.seconds([(0, chunk)]))
        chunk = budget.chunk(0, budget.seconds_for_prompts(answers, 0), 512)
    took = answering + machine.seconds([(0, chunk)])
    target = max(budget.floor_seconds, budget.stretch * answering)
    assert chunk <= 16 or took <= 1.3 * target + 33 * token
    assert chunk == 512 or took >= 0.95 * target - 66 * token


@given(positions)
def test_a_chunk_beside_generation_is_a_tile_where_that_is_efficient(position: int) -> None:
    """On x86 a tile takes little more time than a quarter of one."""
    budget = trained(X86, 0.03)
    seconds = budget.seconds_for_prompts(3, position)
    chunk = budget.chunk(position, seconds, 5000)
    assert chunk % TILE == 1
    assert X86.seconds([(position, chunk)]) <= 3.4 * seconds


@given(positions, st.integers(1, 400))
def test_no_end_is_left_that_is_smaller_than_a_tile(position: int, most: int) -> None:
    """Unless that would take too long."""
    budget = trained(X86, 0.03)
    seconds = budget.seconds_for_prompts(3, position)
    chunk = budget.chunk(position, seconds, most)
    left = most - chunk
    assert left == 0 or left >= TILE or X86.seconds([(position, most)]) > 3.1 * seconds
    assert X86.seconds([(position, chunk)]) <= 3.7 * seconds or chunk <= TILE + 1


@given(st.integers(0, 16_000))
def test_beside_fast_answers_a_tile_takes_half_a_second(position: int) -> None:
    """Unless the fewest rows take as long: a quarter of a second is far more than ten times a token there."""
    budget = trained(X86, 0.01)
    chunk = budget.chunk(position, budget.seconds_for_prompts(3, position), 5000)
    fewest = X86.seconds([(position, 16)])
    assert X86.seconds([(position, chunk)]) <= max(2.1 * budget.floor_seconds, 1.02 * fewest)


def test_a_short_chunk_where_a_tile_takes_too_long() -> None:
    budget = trained(Machine(0.02, 0, 0), 0.01)  # a larger model, where a tile saves nothing
    assert budget.chunk(0, budget.seconds_for_prompts(3, 0), 500) == 16


def test_the_time_for_prompts_depends_on_the_answers_of_the_step() -> None:
    budget = StepBudget()
    for answers in (1, 8, 1, 8):
        budget.observe(answers=answers, chunks=[], seconds=0.02 + 0.014 * answers)
    assert budget.generating(1) == pytest.approx(0.034, rel=0.05)
    assert budget.generating(8) == pytest.approx(0.132, rel=0.05)
    one, eight = (budget.seconds_for_prompts(answers, 1000) for answers in (1, 8))
    assert eight > 3 * one
    assert budget.seconds_for_prompts(1, 1000, short=True) <= 0.25


@given(st.integers(1, 16), st.floats(1e-3, 0.2), st.floats(1e-5, 0.05))
def test_a_brief_chunk_takes_no_longer_than_the_answers(answers: int, answering: float, token: float) -> None:
    budget = StepBudget()
    for _ in range(20):
        budget.observe(answers=answers, chunks=[], seconds=answering)
        budget.observe(answers=answers, chunks=[(0, 64)], seconds=answering + 64 * token)
    chunk = budget.chunk(0, budget.brief_seconds_for_prompts(answers), 512, brief=True)
    assert 8 <= chunk <= 512
    assert chunk == 8 or chunk * token <= max(budget.brief_seconds, 2 * answering)


def test_one_slow_step_is_forgotten() -> None:
    budget, answers = StepBudget(), 3

    def brief() -> int:
        return budget.chunk(0, budget.brief_seconds_for_prompts(answers), 512, brief=True)

    budget.observe(answers=answers, chunks=[], seconds=0.01)
    budget.observe(answers=answers, chunks=[(0, 100)], seconds=0.02)
    usual = brief()
    budget.observe(answers=answers, chunks=[(0, 100)], seconds=2)
    assert brief() == 8
    for _ in range(30):
        chunk = brief()
        budget.observe(answers=answers, chunks=[(0, chunk)], seconds=0.01 + chunk * 0.0001)
    assert brief() >= usual // 2


@given(positions, st.integers(1, 8))
def test_drafted_tokens_fill_a_tile_with_the_answers(position: int, answers: int) -> None:
    """With streams a tile has rows of one sequence."""
    for unified in (True, False):
        budget = trained(X86, 0.03, unified=unified)
        tile = budget.draft_tile(answers, position)
        if not unified and answers > 1:
            assert tile is None
        else:
            assert tile is not None
            drafted, seconds = tile
            assert drafted + answers == TILE
            assert seconds == pytest.approx(X86.seconds([(position, TILE)]), rel=0.1, abs=0.02)


def test_no_tile_for_drafts_on_a_gpu_or_before_one_was_measured() -> None:
    budget = StepBudget()
    assert budget.draft_tile(1, 1000) is None
    budget.observe(answers=0, chunks=[(0, 40)], seconds=1)
    assert budget.draft_tile(1, 1000) is None
    budget = trained(X86, 0.03)
    budget.pass_rows = 512
    assert budget.draft_tile(1, 1000) is None
