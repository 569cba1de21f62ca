"""Speculative decoding: the same answers in fewer steps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling import Request
from paddock.types import Constraint, DraftParams, SamplingParams
from tests.options import draft_params
from tests.scheduling.harness import Harness, Texts, answer_alone

RIGHT = 1000
"""So rarely wrong that no draft in these tests is wrong."""
FOUR = draft_params(n_max=4, lookup=0, priced=False)

Drafts = st.one_of(
    st.none(),
    st.builds(draft_params, n_max=st.integers(0, 9), n_min=st.integers(0, 3), lookup=st.just(0), priced=st.just(False)),
)
Requests = st.lists(
    st.tuples(Texts, st.sampled_from([1, 2, 7, 1000]), Drafts, st.booleans(), st.integers(0, 12)),
    min_size=1,
    max_size=7,
)


@given(
    requests=Requests,
    wrong=st.sampled_from([1, 2, 3, 5, RIGHT]),
    n_ctx=st.sampled_from([100, 160, 512]),
    batch=st.integers(4, 40),
    parallel=st.integers(1, 5),
    unified=st.booleans(),
)
def test_drafting_changes_no_answer(
    requests: list[tuple[str, int, DraftParams | None, bool, int]],
    wrong: int,
    n_ctx: int,
    batch: int,
    parallel: int,
    unified: bool,
) -> None:
    """With right and wrong drafts and few cells. After each step the harness compares the counters with the cells, and
    the engine checks that no more cells are used than there are.
    """
    harness = Harness(draft=wrong, n_ctx=n_ctx, batch=batch, parallel=parallel, kv_unified=unified)
    asked = []
    for id, (text, max_tokens, draft, deterministic, steps) in enumerate(requests):
        asked.append(harness.ask(id, text, max_tokens, draft=draft, deterministic=deterministic))
        for _ in range(steps):
            harness.step()
    harness.run()
    for id, (request, (text, max_tokens, draft, deterministic, _)) in enumerate(zip(asked, requests, strict=True)):
        assert (harness.text(id), harness.finished[id, 0]) == answer_alone(text, max_tokens, n_ctx)
        assert 0 <= request.accepted <= request.drafted
        if draft is None or draft.n_max == 0 or deterministic:
            assert request.drafted == 0
        if wrong == 1:
            assert request.accepted == 0


@pytest.mark.parametrize("unified", [True, False])
def test_accepted_drafts_save_steps(unified: bool) -> None:
    harness = Harness(draft=RIGHT, kv_unified=unified)
    request = harness.ask(1, "a" * 10, draft=FOUR)
    steps = 0
    while (plan := harness.step()) is not None:
        steps += bool(plan.spans)
    assert harness.text(1) == answer_alone("a" * 10)[0]
    assert len(harness.text(1)) == 64 - 11
    assert steps == 1 + 11, "the prompt and a letter, then five letters in each step, then the end"
    assert request.accepted == request.drafted


def test_drafted_tokens_are_cached() -> None:
    harness = Harness(draft=3)
    first = harness.ask(1, "a" * 10, max_tokens=20, draft=FOUR)
    harness.run()
    again = harness.ask(2, "a" * 10 + harness.text(1), max_tokens=1)
    harness.run()
    assert first.accepted > 0
    assert again.cached == first.prompt_size + 19, "all but its last token, which was never computed"


def test_drafts_do_not_pass_the_end_of_the_answer() -> None:
    harness = Harness(draft=RIGHT, n_ctx=60)
    harness.ask(1, "a" * 10, max_tokens=4, draft=draft_params(n_max=20, priced=False))
    while (plan := harness.step()) is not None:
        assert all(len(span.draft) <= 2 for span in plan.spans), "a token and one after each draft"
    assert len(harness.text(1)) == 4
    harness.ask(2, "b" * 50, draft=draft_params(n_max=20, priced=False))
    harness.run()
    assert (len(harness.text(2)), harness.finished[2, 0]) == (60 - 51, "length")


def _drafting(harness: Harness, **fields: Any) -> list[Request]:
    """The requests among three running ones that get drafts in some step."""
    requests = [harness.ask(id, f"{id}", max_tokens=30, draft=FOUR, **fields) for id in range(3)]
    found: dict[int, Request] = {}
    while (plan := harness.step()) is not None:
        found |= {
            r.id: r
            for span, r in zip(plan.spans, plan.requests, strict=True)
            if span.drafting and span.drafting.params.n_max
        }
    return [request for request in requests if request.id in found]


def test_requests_that_must_not_be_drafted_are_not() -> None:
    assert len(_drafting(Harness(draft=RIGHT))) == 3
    assert not _drafting(Harness(draft=RIGHT), deterministic=True)
    assert not _drafting(Harness(draft=0)), "no draft model"
    assert not _drafting(Harness(draft=RIGHT, whole=True)), "this memory cannot be cut"


def test_no_drafts_with_many_answers_or_beside_a_prompt() -> None:
    harness = Harness(draft=RIGHT, parallel=8)
    for id in range(5):
        harness.ask(id, f"{id}", max_tokens=10 + 5 * id, draft=FOUR)
    harness.ask(9, "z" * 200, max_tokens=1, draft=FOUR)
    drafted = False
    while (plan := harness.step()) is not None:
        drafting = any(span.drafting is not None and span.drafting.params.n_max for span in plan.spans)
        drafted = drafted or drafting
        assert not drafting or (len(plan.spans) == plan.decodes <= harness.engine.info.draft_slots)
    assert drafted, "when few requests are left"


@pytest.mark.parametrize("wrong", [2, 5, RIGHT])
def test_drafted_tokens_obey_the_constraint(wrong: int) -> None:
    answers = []
    for draft in (0, wrong):
        harness = Harness(draft=draft)
        grammar = harness.engine.grammars.compile(Constraint("regex", "[a-m ]{3}x[a-z ]{30}", "regex"))
        tokens = harness.engine.vocab.tokenize("abc", add_special=True, parse_special=False)
        sampler = harness.engine.sampler(SamplingParams(seed=7), tokens, grammar)
        request = Request(1, tokens, sampler, 100, draft=FOUR)
        harness.scheduler.add(request)
        harness.run()
        assert harness.finished[1, 0] == "stop"
        answers.append(harness.text(1))
        assert bool(draft) == bool(request.accepted)
    assert answers[0] == answers[1]
    assert len(answers[0]) == 34
