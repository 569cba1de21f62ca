"""Steps that are padded to a tile, because a CPU computes one in less time."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling import StepBudget
from paddock.scheduling.token_cost import TILE
from paddock.types import Adapters
from tests.scheduling.harness import Harness, Sets, Texts, answer_alone
from tests.scheduling.test_chunks import train
from tests.scheduling.test_token_cost import X86, Machine, machines


class AnyPadding(StepBudget):
    """Wants padding of any size."""

    def __init__(self, seed: int, most: int) -> None:
        super().__init__(pads=True)
        self._random = random.Random(seed)
        self._most = most

    def padding(self, chunks: Sequence[tuple[int, int]], answers: int) -> int:
        return self._random.randint(0, self._most) if chunks else 0


Requests = st.lists(st.tuples(Texts, st.sampled_from([1, 2, 40]), st.booleans(), Sets), min_size=1, max_size=7)


@given(
    requests=Requests,
    waits=st.lists(st.integers(0, 12), min_size=7, max_size=7),
    n_ctx=st.sampled_from([100, 160, 512]),
    batch=st.integers(4, 40),
    parallel=st.integers(1, 5),
    unified=st.booleans(),
    short=st.integers(0, 8),
    most=st.sampled_from([1, 9, 70]),
    seed=st.integers(0, 100),
)
def test_padding_changes_no_answer(
    requests: list[tuple[str, int, bool, Adapters]],
    waits: list[int],
    n_ctx: int,
    batch: int,
    parallel: int,
    unified: bool,
    short: int,
    most: int,
    seed: int,
) -> None:
    """After each step the harness compares the counters with the cells. `short`: the engine has fewer cells than it
    says, so some steps have no room.
    """
    budget = AnyPadding(seed, most)
    short = short if unified else 0
    harness = Harness(n_ctx=n_ctx, batch=batch, parallel=parallel, kv_unified=unified, short=short, budget=budget)
    for id, (text, max_tokens, deterministic, adapters) in enumerate(requests):
        harness.ask(id, text, max_tokens, deterministic=deterministic, adapters=adapters)
        for _ in range(waits[id]):
            harness.step()
    harness.run()
    for id, (text, max_tokens, _, adapters) in enumerate(requests):
        assert harness.text(id) == answer_alone(text, max_tokens, n_ctx, adapters)[0]


def _budget(machine: Machine, *, unified: bool, pads: bool = True) -> StepBudget:
    budget = StepBudget(unified=unified, pads=pads)
    train(budget, machine)
    return budget


def _seconds(budget: StepBudget, start: int, count: int, answers: int) -> float:
    return budget._prompts.seconds_together([(start, count)], answers=answers)


@given(machines, st.integers(200, 8000), st.integers(1, 80), st.integers(0, 70), st.booleans())
def test_padding_saves_time(machine: Machine, start: int, count: int, answers: int, unified: bool) -> None:
    budget, plain = _budget(machine, unified=unified), _budget(machine, unified=unified, pads=False)
    padding = budget.padding([(start, count)], answers)
    assert padding >= 0
    if padding:
        first = 0 if unified or not answers else 1
        assert count + padding + (answers if unified else 0) == TILE + first, "exactly one tile"
        asked, padded = machine.seconds([(start, count)]), machine.seconds([(start, count + padding)])
        assert unified or padded < asked
        assert _seconds(budget, start, count, answers) < _seconds(plain, start, count, answers)
    else:
        assert _seconds(budget, start, count, answers) == _seconds(plain, start, count, answers)


def test_a_question_after_a_long_text_is_padded() -> None:
    for unified in (True, False):
        budget = _budget(X86, unified=unified)
        assert budget.padding([(6000, 40)], 0) == 24
        assert budget.padding([(6000, 40)], 3) == (21 if unified else 25)
        assert not budget.padding([(6000, 8)], 0), "few rows take less time than a tile"
        assert not budget.padding([(100, 40)], 0), "attention takes little time here"
        assert not budget.padding([(6000, TILE)], 0)
        assert not budget.padding([], 40)
        assert bool(budget.padding([(6000, 25), (6000, 25)], 0)) == unified, "rows of two streams share no tile"
    assert not _budget(X86, unified=True, pads=False).padding([(6000, 40)], 0)


@pytest.mark.parametrize("deterministic", [False, True])
def test_padding_is_bounded_by_the_context(deterministic: bool) -> None:
    for n_ctx, pads in ((1100, True), (1061, False)):
        budget = _budget(X86, unified=False)
        harness = Harness(n_ctx=n_ctx, batch=512, parallel=1, kv_unified=False, budget=budget)
        harness.seconds = 0.0  # what the budget knows stays as it is
        harness.ask(1, "b" * 1000, 1)
        harness.run()
        harness.ask(2, "b" * 1000 + "a" * 45, 1, deterministic=deterministic)
        padding = 0
        while (plan := harness.step()) is not None:
            padding += sum(span.padding for span in plan.spans)
        assert (padding > 0) == (pads and not deterministic)
