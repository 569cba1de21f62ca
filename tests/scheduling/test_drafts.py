"""Answers that are guessed ahead are the answers that they would be without, and come in fewer steps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling import Request
from paddock.types import Constraint, DraftParams, SamplingParams
from tests.scheduling.test_scheduler import House, Texts, _alone

RIGHT = 1000
"""So seldom wrong that no answer here has a wrong guess."""
FOUR = DraftParams(n_max=4)

Drafts = st.one_of(st.none(), st.builds(DraftParams, n_max=st.integers(0, 9), n_min=st.integers(0, 3)))
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
def test_everybody_gets_the_answer_they_would_get_without(
    requests: list[tuple[str, int, DraftParams | None, bool, int]],
    wrong: int,
    n_ctx: int,
    batch: int,
    parallel: int,
    unified: bool,
) -> None:
    """Whatever is guessed, right or wrong, and however crowded it is: the house checks after each step that cells and
    accounts agree, and the engine that no more cells are used than there are.
    """
    house = House(draft=wrong, n_ctx=n_ctx, batch=batch, parallel=parallel, kv_unified=unified)
    asked = []
    for id, (text, max_tokens, draft, deterministic, steps) in enumerate(requests):
        asked.append(house.ask(id, text, max_tokens, draft=draft, deterministic=deterministic))
        for _ in range(steps):
            house.step()
    house.run()
    for id, (request, (text, max_tokens, draft, deterministic, _)) in enumerate(zip(asked, requests, strict=True)):
        assert (house.text(id), house.finished[id, 0]) == _alone(text, max_tokens, n_ctx)
        assert 0 <= request.accepted <= request.drafted
        if draft is None or draft.n_max == 0 or deterministic:
            assert request.drafted == 0
        if wrong == 1:
            assert request.accepted == 0


@pytest.mark.parametrize("unified", [True, False])
def test_right_guesses_spare_steps(unified: bool) -> None:
    house = House(draft=RIGHT, kv_unified=unified)
    request = house.ask(1, "a" * 10, draft=FOUR)
    steps = 0
    while (plan := house.step()) is not None:
        steps += bool(plan.spans)
    assert house.text(1) == _alone("a" * 10)[0]
    assert len(house.text(1)) == 64 - 11
    assert steps == 1 + 11, "the prompt and a letter, then five at a time, and at last its end"
    assert request.accepted == request.drafted


def test_what_was_guessed_is_remembered_like_any_answer() -> None:
    house = House(draft=3)
    first = house.ask(1, "a" * 10, max_tokens=20, draft=FOUR)
    house.run()
    again = house.ask(2, "a" * 10 + house.text(1), max_tokens=1)
    house.run()
    assert first.accepted > 0
    assert again.cached == first.prompt_size + 19, "but for its last token, which was never computed"


def test_an_answer_is_not_guessed_past_its_end() -> None:
    house = House(draft=RIGHT, n_ctx=60)
    house.ask(1, "a" * 10, max_tokens=4, draft=DraftParams(n_max=20))
    while (plan := house.step()) is not None:
        assert all(len(span.draft) <= 2 for span in plan.spans), "a first, and one after each guess"
    assert len(house.text(1)) == 4
    house.ask(2, "b" * 50, draft=DraftParams(n_max=20))
    house.run()
    assert (len(house.text(2)), house.finished[2, 0]) == (60 - 51, "length")


def _drafting(house: House, **fields: Any) -> list[Request]:
    """Of three answers under way, those that are guessed ahead in some step."""
    requests = [house.ask(id, f"{id}", max_tokens=30, draft=FOUR, **fields) for id in range(3)]
    found: dict[int, Request] = {}
    while (plan := house.step()) is not None:
        found |= {r.id: r for span, r in zip(plan.spans, plan.requests, strict=True) if span.drafting is not None}
    return [request for request in requests if request.id in found]


def test_who_must_not_be_guessed_is_not() -> None:
    assert len(_drafting(House(draft=RIGHT))) == 3
    assert not _drafting(House(draft=RIGHT), deterministic=True)
    assert not _drafting(House(draft=0)), "nobody is there to guess"
    assert not _drafting(House(draft=RIGHT, whole=True)), "no part of such a memory can be forgotten"


def test_many_answers_and_those_beside_a_prompt_are_not_guessed() -> None:
    house = House(draft=RIGHT, parallel=8)
    for id in range(5):
        house.ask(id, f"{id}", max_tokens=10 + 5 * id, draft=FOUR)
    house.ask(9, "z" * 200, max_tokens=1, draft=FOUR)
    drafted = False
    while (plan := house.step()) is not None:
        drafting = any(span.drafting is not None for span in plan.spans)
        drafted = drafted or drafting
        assert not drafting or (len(plan.spans) == plan.decodes <= house.engine.info.drafts_for)
    assert drafted, "when few are left"


@pytest.mark.parametrize("wrong", [2, 5, RIGHT])
def test_a_constraint_is_kept_token_by_token(wrong: int) -> None:
    answers = []
    for draft in (0, wrong):
        house = House(draft=draft)
        grammar = house.engine.compile(Constraint("regex", "[a-m ]{3}x[a-z ]{30}", "regex"))
        tokens = house.engine.vocab.tokenize("abc", add_special=True, parse_special=False)
        sampler = house.engine.sampler(SamplingParams(seed=7), tokens, grammar)
        request = Request(1, tokens, sampler, 100, draft=FOUR)
        house.scheduler.add(request)
        house.run()
        assert house.finished[1, 0] == "stop"
        answers.append(house.text(1))
        assert bool(draft) == bool(request.accepted)
    assert answers[0] == answers[1]
    assert len(answers[0]) == 34
