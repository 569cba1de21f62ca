"""First tokens of several short prompts after one long text in shared cells, on simulated machines."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling import Request, StepBudget
from paddock.scheduling.chunks import PrefillChunks
from paddock.scheduling.fairness import FairQueue
from paddock.scheduling.token_cost import TILE
from tests.scheduling.test_token_cost import X86, Machine, machines

_KNOWN = 1000
"""The tokens of the text."""


def _seconds(machine: Machine, chunks: Sequence[tuple[int, int]], answers: int) -> float:
    """In shared cells a tile has rows of several sequences."""
    each = machine.tiled if sum(count for _, count in chunks) >= TILE else machine.rows
    prompts = sum(count * (machine.base + each * (start + count / 2)) for start, count in chunks)
    return prompts + (machine.base * (3 + answers) if answers else 0.0)


def _train(budget: StepBudget, machine: Machine) -> None:
    """It has seen the text, and questions of single users."""
    for chunk in [(0, 500), (500, 500), (_KNOWN, 20), (_KNOWN, 12), (_KNOWN, 30), (_KNOWN, 16)]:
        budget.observe(answers=0, chunks=[chunk], seconds=_seconds(machine, [chunk], 0))
        for answers in (1, 4):
            budget.observe(answers=answers, chunks=[], seconds=_seconds(machine, [], answers))


def _burst(machine: Machine, sizes: Sequence[int], budget: StepBudget | None = None) -> tuple[list[float], list[int]]:
    """The times of the first tokens, and the prompt tokens of each step. Those with a first token go on."""
    budget = budget or StepBudget(unified=True)
    _train(budget, machine)
    chunks = PrefillChunks(budget, FairQueue())
    running = [
        Request(id, [id] * (_KNOWN + size), None, 100, computed=_KNOWN, sequence=id, arrival=id)
        for id, size in enumerate(sizes)
    ]
    now, firsts, steps = 0.0, list[float](), list[int]()
    prompts = running
    while prompts:
        share = chunks.divide(prompts, running, room=512, contended=False)
        parts = [(request.computed, count) for request, count in share]
        seconds = _seconds(machine, parts, len(firsts))
        budget.observe(answers=len(firsts), chunks=parts, seconds=seconds)
        now += seconds
        steps.append(sum(count for _, count in parts))
        for request, count in share:
            request.computed += count
            if not request.pending:
                request.tokens.append(0)  # it has its first token, and generates from now on
                firsts.append(now)
        prompts = [request for request in running if not request.is_generating]
    return firsts, steps


def test_short_questions_fill_a_tile() -> None:
    firsts, steps = _burst(X86, [15] * 8)
    assert steps[0] == 75, "five of them"
    alone = X86.seconds([(_KNOWN, 15)])
    assert firsts[4] < 2.5 * alone, "one after the other, the fifth would have its first token after 5"
    assert mean(firsts) < 0.75 * 4.5 * alone


def test_where_tiles_gain_nothing_questions_are_computed_one_after_the_other() -> None:
    firsts, steps = _burst(Machine(0.02, 0, 0), [15] * 8)
    assert steps == [15] * 8
    assert len(set(firsts)) == 8


class _Apart(StepBudget):
    """Tiles are not filled."""

    def is_better_together(self, *_: object) -> bool:
        return False


@given(machines, st.lists(st.integers(2, 60), min_size=1, max_size=12))
def test_filling_tiles_makes_first_tokens_no_later_on_average(machine: Machine, sizes: list[int]) -> None:
    firsts, steps = _burst(machine, sizes)
    assert sum(steps) == sum(sizes)
    apart, _ = _burst(machine, sizes, _Apart(unified=True))
    assert mean(firsts) <= 1.1 * mean(apart)
