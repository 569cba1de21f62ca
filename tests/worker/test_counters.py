"""What is taken out of a count, in however many parts, is what went in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling import Plan, Request
from paddock.tally import Tally
from paddock.types import Span
from paddock.worker.counters import Counters

_seconds = st.floats(0, 100)


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 99), _seconds, st.booleans()), max_size=40))
def test_nothing_is_lost_or_told_twice(steps: list[tuple[int, int, float, bool]]) -> None:
    counting, told = Counters(), Tally()
    for number, (inputs, tokens, seconds, tell) in enumerate(steps):
        counting.pooled_step(inputs, tokens, seconds)
        counting.tokens({None: 1, float(number): inputs}, number + seconds)
        counting.began(Request(1, [1], None, 1), seconds)
        counting.read(seconds)
        if tell:
            assert counting.due(0.0, idle=True)
            told.add(counting.pooled_stats(0, 0.0).tally)
            assert not counting.due(9.0, idle=True), "nothing has changed"
    told.add(counting.last().tally)
    inputs = sum(step[0] for step in steps)
    assert told.prompt_tokens == sum(step[1] for step in steps) == told.step_tokens.sum
    assert told.step_seconds.count == told.queue_seconds.count == told.cache_misses == len(steps)
    assert told.generated_tokens == inputs + len(steps)
    assert told.inter_token_seconds.count == inputs == told.step_sequences.sum
    assert told.prompt_seconds == pytest.approx(2 * sum(step[2] for step in steps))
    assert counting.last().tally.generated_tokens == 0


def test_told_once_a_second_and_at_rest() -> None:
    counting = Counters()
    assert not counting.due(5.0)
    counting.pooled_step(1, 1, 0.1)
    assert counting.due(5.0)
    counting.pooled_stats(0, 5.0)
    counting.pooled_step(1, 1, 0.1)
    assert not counting.due(5.9)
    assert counting.due(5.9, idle=True)
    assert counting.due(6.0)


@given(st.integers(1, 50), st.integers(0, 20), st.integers(1, 30))
def test_prompt_tokens_are_told_from_generated_ones(prompt: int, start: int, length: int) -> None:
    """Also in a step that goes over a request's prompt into what it had generated before it had to step back."""
    request = Request(1, [7] * prompt, None, 100)
    request.tokens += [8] * (start + length)
    span = Span(0, start, request.tokens[start : start + length])
    counting = Counters()
    counting.step(Plan([], [span], [request]), 0.1)
    tally = counting.last().tally
    assert tally.prompt_tokens == span.tokens.count(7)
    assert tally.step_tokens.sum == length
