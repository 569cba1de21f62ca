from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling import StepBudget


def test_a_prompt_alone_gets_whole_batches() -> None:
    budget = StepBudget(largest=512)
    budget.observe(decodes=0, prompt_tokens=512, seconds=10)
    assert budget.prompt_tokens(decodes=0) == 512


@given(st.floats(0.0001, 0.05), st.floats(0.001, 1), st.integers(1, 32))
def test_a_step_with_generating_requests_stays_near_the_target(token: float, answering: float, decodes: int) -> None:
    """On a machine where every token costs the same, whatever that is."""
    budget = StepBudget(largest=512)
    for _ in range(20):
        budget.observe(decodes=decodes, prompt_tokens=0, seconds=answering)
        chunk = budget.prompt_tokens(decodes=decodes)
        took = answering + chunk * token
        budget.observe(decodes=decodes, prompt_tokens=chunk, seconds=took)
    target = max(budget.floor_seconds, budget.stretch * answering)
    assert chunk <= 16 or took <= target + 33 * token
    assert chunk == 512 or took >= target - 50 * token


def test_slower_prompt_tokens_get_smaller_chunks() -> None:
    budget = StepBudget(largest=512)
    budget.observe(decodes=2, prompt_tokens=0, seconds=0.02)
    sizes = []
    for position in range(8):
        chunk = budget.prompt_tokens(decodes=2)
        sizes.append(chunk)
        budget.observe(decodes=2, prompt_tokens=chunk, seconds=0.02 + chunk * 0.001 * (1 + position))
    assert sizes[-1] < max(sizes)


@given(st.integers(0, 16), st.floats(1e-3, 0.2), st.floats(1e-5, 0.05))
def test_a_brief_chunk_takes_no_longer_than_the_decodes(decodes: int, answering: float, token: float) -> None:
    budget = StepBudget(largest=512)
    assert budget.brief_tokens() == 8
    for _ in range(20):
        budget.observe(decodes=decodes, prompt_tokens=0, seconds=answering)
        budget.observe(decodes=decodes, prompt_tokens=64, seconds=answering + 64 * token)
    chunk = budget.brief_tokens()
    assert 8 <= chunk <= 512
    assert chunk == 8 or chunk * token <= max(budget.brief_seconds, 2 * answering)


def test_one_slow_step_is_forgotten() -> None:
    budget = StepBudget(largest=512)
    budget.observe(decodes=3, prompt_tokens=0, seconds=0.01)
    budget.observe(decodes=3, prompt_tokens=100, seconds=0.02)
    usual = budget.brief_tokens()
    budget.observe(decodes=3, prompt_tokens=100, seconds=2)
    assert budget.brief_tokens() == 8
    for _ in range(30):
        chunk = budget.brief_tokens()
        budget.observe(decodes=3, prompt_tokens=chunk, seconds=0.01 + chunk * 0.0001)
    assert budget.brief_tokens() >= usual // 2
