"""How long the first step after an idle time waits for the other requests of a burst."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling import StepBudget
from paddock.scheduling.token_cost import TILE
from tests.scheduling.harness import Harness
from tests.scheduling.test_chunks import train
from tests.scheduling.test_token_cost import X86, Machine, machines

_questions = st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 80)), max_size=10)


def _budget(machine: Machine = X86, *, unified: bool = True) -> StepBudget:
    budget = StepBudget(unified=unified)
    train(budget, machine)
    return budget


@given(machines, _questions, st.floats(0, 0.2), st.booleans())
def test_a_wait_is_worth_it_and_ends(
    machine: Machine, questions: list[tuple[int, int]], waited: float, is_coming: bool
) -> None:
    budget = _budget(machine)
    patience = budget.patience(questions, waited, is_coming=is_coming)
    assert patience >= 0
    if patience:
        assert sum(count for _, count in questions) < TILE, "a full tile does not wait"
        assert len(questions) + is_coming >= 2, "one that is alone does not wait"
        alone = sum(budget.seconds(*question) for question in questions)
        assert waited + patience <= alone / 4, "a part of what they take"
    assert not _budget(machine, unified=False).patience(questions, waited, is_coming=is_coming)


def test_nothing_waits_while_costs_are_unknown() -> None:
    assert StepBudget(unified=True).patience([(1000, 15)], 0.0, is_coming=True) == 0


def test_nothing_waits_where_a_tile_saves_nothing() -> None:
    assert _budget(Machine(0.02, 0, 0)).patience([(1000, 15)], 0.0, is_coming=True) == 0


def test_the_more_wait_the_longer_they_may_wait() -> None:
    waits = [_budget().patience([(1000, 15)] * count, 0.0, is_coming=True) for count in range(1, 6)]
    assert 0.01 < waits[0] < waits[1] < waits[2] < waits[3] < 0.2
    assert waits[4] == 0, "they fill a tile"


def test_without_a_sign_of_others_two_wait_for_a_moment_only() -> None:
    budget = _budget()
    assert budget.patience([(1000, 15)], 0.0, is_coming=False) == 0
    assert 0 < budget.patience([(1000, 15)] * 2, 0.0, is_coming=False) < 0.01


def _harness() -> Harness:
    harness = Harness(n_ctx=4096, batch=512)
    harness.ask(1, "a" * 1000, max_tokens=1)
    harness.run()
    train(harness.scheduler._budget, X86)
    return harness


def test_a_new_question_after_a_known_text_waits_for_others_only_while_nothing_runs() -> None:
    harness = _harness()
    scheduler = harness.scheduler
    assert scheduler.patience(0.0, is_coming=True) == 0, "nobody waits"
    harness.ask(2, "a" * 1000 + "b" * 15)
    assert scheduler.patience(0.0, is_coming=False) == 0
    patience = scheduler.patience(0.0, is_coming=True)
    assert 0 < patience < 0.05
    assert scheduler.patience(patience, is_coming=True) == 0
    harness.step()
    harness.ask(3, "a" * 1000 + "c" * 15)
    assert scheduler.patience(0.0, is_coming=True) == 0


def test_answers_to_one_prompt_are_one_user() -> None:
    harness = _harness()
    for index in range(3):
        harness.ask(2, "a" * 1000 + "b" * 15, index=index)
    assert harness.scheduler.patience(0.0, is_coming=False) == 0


def test_long_prompts_deterministic_ones_and_those_of_several_keys_do_not_wait() -> None:
    changes: list[dict[str, Any]] = [{"deterministic": True}, {"key": "other"}]
    for fields in changes:
        harness = _harness()
        harness.ask(2, "a" * 1000 + "b" * 15)
        harness.ask(3, "a" * 1000 + "c" * 15, **fields)
        assert harness.scheduler.patience(0.0, is_coming=True) == 0
    harness = _harness()
    harness.ask(2, "b" * 1000)
    assert harness.scheduler.patience(0.0, is_coming=True) == 0
