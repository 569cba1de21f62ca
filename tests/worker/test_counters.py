"""The stats of a worker: the sum of all messages is what was counted."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling import Plan, Request
from paddock.tally import Tally, metrics_of
from paddock.types import DraftSource, Sampled, Span
from paddock.worker.counters import Counters

_seconds = st.floats(0, 100)


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 99), _seconds, st.booleans()), max_size=40))
def test_nothing_is_lost_or_counted_twice(steps: list[tuple[int, int, float, bool]]) -> None:
    counters, sent = Counters(), Tally()
    for number, (inputs, tokens, seconds, send) in enumerate(steps):
        counters.pooled_step(inputs, tokens, seconds)
        counters.tokens({(None, 1): 1, (float(number), 1): inputs}, number + seconds)
        counters.started(Request(1, [1], None, 1), seconds)
        counters.prompt_done(seconds)
        if send:
            assert counters.are_due(0.0, is_idle=True)
            sent.add(counters.pooled_stats(0, 0.0).tally)
            assert not counters.are_due(9.0, is_idle=True), "nothing has changed"
    sent.add(counters.last().tally)
    inputs = sum(step[0] for step in steps)
    assert sent.prompt_tokens == sum(step[1] for step in steps) == sent.step_tokens.sum
    assert sent.step_seconds.count == sent.queue_seconds.count == sent.cache_misses == len(steps)
    assert sent.generated_tokens == inputs + len(steps)
    assert sent.inter_token_seconds.count == inputs == sent.step_sequences.sum
    assert sent.prompt_seconds == pytest.approx(2 * sum(step[2] for step in steps))
    assert counters.last().tally.generated_tokens == 0


@given(st.lists(st.tuples(st.none() | _seconds, st.integers(1, 9), st.integers(1, 4)), max_size=20))
def test_tokens_that_come_together_share_the_time(arrived: list[tuple[float | None, int, int]]) -> None:
    counters = Counters()
    for waited, count, answers in arrived:
        counters.tokens({(None if waited is None else 100 - waited, count): answers}, 100.0)
    tally = counters.last().tally
    assert tally.generated_tokens == sum(count * answers for _, count, answers in arrived)
    times = tally.inter_token_seconds
    assert times.count == tally.generated_tokens - sum(answers for waited, _, answers in arrived if waited is None)
    assert times.sum == pytest.approx(sum((waited or 0.0) * answers for waited, _, answers in arrived))
    longest = max((waited / count for waited, count, _ in arrived if waited is not None), default=0.0)
    assert all(not count for bound, count in zip(times.bounds, times.counts[1:], strict=True) if bound > longest + 1e-9)


@given(
    st.lists(
        st.none() | st.tuples(st.none() | st.sampled_from(get_args(DraftSource)), st.integers(0, 9), st.integers(0, 9)),
        max_size=30,
    )
)
def test_guessed_tokens_are_counted_by_source(
    results: list[tuple[DraftSource | None, int, int] | None],
) -> None:
    """Every source has its two metrics."""
    steps: list[Sampled | None] = []
    for result in results:
        source, drafted, accepted = result or (None, 0, 0)
        drafted = 0 if source is None else drafted
        more = [Sampled(2)] * min(drafted, accepted)
        steps.append(None if result is None else Sampled(1, drafted=drafted, draft_source=source, more=more))
    counters = Counters()
    spans = [Span(at, 0, [7], draft=[2] * (step.drafted if step else 0)) for at, step in enumerate(steps)]
    counters.drafts(Plan([], spans, [Request(at, [7], None, 1) for at in range(len(spans))]), steps)
    tally = counters.last().tally
    drafts = [step for step in steps if step is not None and step.drafted]
    assert tally.drafts == len(drafts)
    assert tally.drafted_tokens == sum(step.drafted for step in drafts)
    assert tally.accepted_tokens == sum(len(step.more) for step in drafts)
    fields = metrics_of(Tally)
    for name, counted in (
        ("paddock_drafted_tokens_total", lambda step: step.drafted),
        ("paddock_accepted_tokens_total", lambda step: len(step.more)),
    ):
        sources = {metric.label[1]: field for field, metric in fields.items() if metric.name == name and metric.label}
        assert sources.keys() == set(get_args(DraftSource))
        for label, field in sources.items():
            assert getattr(tally, field) == sum(counted(step) for step in drafts if step.draft_source == label)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=8))
def test_a_step_has_the_guessed_tokens_too(sizes: list[tuple[int, int]]) -> None:
    spans = [Span(at, 0, [7] * tokens, draft=[8] * guessed) for at, (tokens, guessed) in enumerate(sizes)]
    counters = Counters()
    counters.step(Plan([], spans, [Request(at, [7], None, 1) for at in range(len(spans))], decodes=len(spans)), 0.1)
    tally = counters.last().tally
    assert tally.step_tokens.sum == sum(tokens + guessed for tokens, guessed in sizes)
    assert tally.step_sequences.sum == len(sizes)


@given(st.lists(st.none() | st.tuples(st.integers(0, 99), st.integers(0, 9)), min_size=1, max_size=8))
def test_the_longest_sequence_has_its_accepted_guesses(steps: list[tuple[int, int] | None]) -> None:
    """Also if its answer has ended with them. A result that nobody wants any more (None) counts as its step does."""
    counters = Counters()
    spans = [Span(at, step[0] if step else 5, [7], draft=[8] * 9) for at, step in enumerate(steps)]
    plan = Plan([], spans, [Request(at, [7], None, 1) for at in range(len(spans))], decodes=len(spans))
    counters.step(plan, 0.1)
    results = [
        Sampled(1, drafted=9, draft_source="ngram", more=[Sampled(1)] * step[1]) if step else None for step in steps
    ]
    counters.drafts(plan, results)
    assert counters.longest == max(sum(step) + 1 if step else 6 for step in steps)


def test_stats_are_due_once_a_second_and_when_idle() -> None:
    counters = Counters()
    assert not counters.are_due(5.0)
    counters.pooled_step(1, 1, 0.1)
    assert counters.are_due(5.0)
    counters.pooled_stats(0, 5.0)
    counters.pooled_step(1, 1, 0.1)
    assert not counters.are_due(5.9)
    assert counters.are_due(5.9, is_idle=True)
    assert counters.are_due(6.0)


@given(st.integers(1, 50), st.integers(0, 20), st.integers(1, 30))
def test_prompt_tokens_are_not_counted_as_generated(prompt: int, start: int, length: int) -> None:
    """Also in a step that computes a prompt and generated tokens again after a preemption."""
    request = Request(1, [7] * prompt, None, 100)
    request.tokens += [8] * (start + length)
    span = Span(0, start, request.tokens[start : start + length])
    counters = Counters()
    counters.step(Plan([], [span], [request]), 0.1)
    tally = counters.last().tally
    assert tally.prompt_tokens == span.tokens.count(7)
    assert tally.step_tokens.sum == length
