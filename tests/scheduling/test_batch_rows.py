"""Steps that have only lines of batches are longer, while nobody else asks for anything."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling import Plan, Request, StepBudget
from paddock.scheduling.batch_rows import BatchRows
from paddock.scheduling.chunks import PrefillChunks
from paddock.scheduling.fairness import FairQueue
from paddock.scheduling.token_cost import TILE
from tests.scheduling.harness import Harness
from tests.scheduling.test_chunks import _KNOWN, train
from tests.scheduling.test_token_cost import X86

_MOST = 4 * TILE
_LIMIT = 2.0
Costs = st.floats(0.0, 1.0), st.floats(1e-4, 0.2)
"""Of a step, and of each of its rows."""


def _steps(rows: BatchRows, step: float, row: float, count: int) -> list[tuple[int, float]]:
    """Steps with as many rows as allowed, or a tile as before, and their seconds."""
    steps = []
    for _ in range(count):
        size = rows.count or TILE
        steps.append((size, step + row * size))
        rows.observe(*steps[-1])
    return steps


@given(*Costs)
def test_steps_have_as_many_rows_as_fit(step: float, row: float) -> None:
    rows = BatchRows(_LIMIT)
    steps = _steps(rows, step, row, 20)
    assert all(seconds <= _LIMIT for _, seconds in steps[1:]) or rows.count == 0, "it grows carefully"
    most = (_LIMIT / 1.25 - step) / row
    if step + TILE * row > _LIMIT:
        assert rows.count == 0, "no more than before"
    elif most < _MOST:
        assert rows.count == TILE or most / 1.25 <= rows.count <= 1.25 * most
    else:
        assert rows.count == _MOST


@given(*Costs, st.floats(1.0, 20.0))
def test_a_machine_that_becomes_slower_has_shorter_steps(step: float, row: float, slower: float) -> None:
    rows = BatchRows(_LIMIT)
    _steps(rows, step, row, 20)
    late = _steps(rows, slower * step, slower * row, 20)[10:]
    assert all(seconds <= _LIMIT for _, seconds in late) or rows.count == 0
    _steps(rows, step / 4, row / 4, 20)
    assert step + TILE * row >= 4 * _LIMIT / 1.25 or rows.count >= TILE


@given(st.lists(st.tuples(st.integers(1, 600), st.floats(0.001, 30.0)), max_size=60))
def test_the_limit_is_none_or_at_least_a_tile(observed: list[tuple[int, float]]) -> None:
    rows = BatchRows(_LIMIT)
    for each in observed:
        rows.observe(*each)
        assert rows.count == 0 or TILE <= rows.count <= _MOST


def test_short_steps_tell_nothing_about_long_ones() -> None:
    rows = BatchRows(_LIMIT, count=192)
    rows.observe(30, 0.1)
    rows.observe(30, 10.0)
    assert rows.count == 192


def _prompts(sizes: list[int]) -> list[Request]:
    return [
        Request(id, [id] * (_KNOWN + size), None, 1, computed=_KNOWN, arrival=id + 1, batch=True)
        for id, size in enumerate(sizes)
    ]


def _trained(rows: int) -> PrefillChunks:
    budget = StepBudget(unified=True)
    train(budget, X86)
    budget._batch_rows.count = rows
    return PrefillChunks(budget, FairQueue())


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=40),
    st.integers(0, 40),
    st.integers(1, 300),
    st.integers(TILE, _MOST),
)
def test_whole_prompts_fill_a_step(sizes: list[int], decodes: int, room: int, rows: int) -> None:
    prompts = _prompts(sizes)
    share = _trained(rows).fill(prompts, room=room, decodes=decodes)
    assert [request for request, _ in share] == prompts[: len(share)], "the oldest"
    left = min(rows - decodes, room)
    assert share[0][1] >= min(prompts[0].max_chunk, left)
    assert all(count == request.max_chunk for request, count in share[1:]), "only the first is cut"
    total = sum(count for _, count in share)
    assert total <= room
    assert len(share) == 1 or total <= left
    if len(share) < len(prompts):
        assert total + prompts[len(share)].max_chunk > left, "no more of them fit"


def test_a_long_prompt_is_cut_and_alone() -> None:
    prompts = _prompts([5000, 10])
    (only,) = _trained(_MOST).fill(prompts, room=512, decodes=0)
    assert only[0] is prompts[0]
    assert 256 <= only[1] <= 512


def test_a_prompt_that_has_begun_goes_first() -> None:
    prompts = _prompts([20, 20])
    prompts[1].admitted_at = _KNOWN
    prompts[1].computed = prompts[1].furthest = _KNOWN + 5
    assert prompts[1].new_tokens
    assert _trained(TILE).fill(prompts, room=512, decodes=0)[0] == (prompts[1], 15)


def _prefilled(plan: Plan) -> int:
    return len(plan.spans) - plan.decodes


def _harness() -> Harness:
    """It knows a text, and what tokens cost in tiles and in rows: few rows fit into the time for early first tokens."""
    budget = StepBudget(unified=True)
    harness = Harness(n_ctx=8192, batch=512, parallel=32, budget=budget)
    harness.ask(1000, "ab" * 300, 1, batch=True)
    harness.run()
    train(budget, X86)
    budget._batch_rows.count = 192
    return harness


def _first_step(harness: Harness, lines: int = 12) -> int:
    """How many prompts the first step of a batch has."""
    for id in range(lines):
        harness.ask(id, "ab" * 300 + chr(ord("c") + id) * 16, 4, batch=True)
    plan = harness.step()
    assert plan is not None
    return _prefilled(plan)


def test_a_batch_alone_has_long_steps() -> None:
    assert _first_step(_harness()) >= 10
    usual = _harness()
    usual.scheduler.notice_interactive()
    assert _first_step(usual) < 8


def test_probabilities_of_a_prompt_are_for_usual_steps() -> None:
    harness = _harness()
    assert harness.scheduler._is_patient
    harness.ask(1, "ab" * 300 + "cde", 1, batch=True, prompt_probs=0)
    harness.step()
    assert not harness.scheduler._is_patient


def test_a_request_that_waits_for_a_slot_is_interactive() -> None:
    harness = _harness()
    harness.ask(1, "ab" * 300 + "c", 50, batch=True)
    harness.step()
    (slot,) = [slot.id for slot in harness.scheduler.slots if slot.busy]
    harness.ask(2, "hello", 1, wanted_slot=slot)
    assert not harness.scheduler._is_patient


def test_a_step_without_room_is_for_no_prompt() -> None:
    """All free cells are for the running answers."""
    harness = _harness()
    scheduler = harness.scheduler
    for id in range(3):
        harness.ask(id, chr(ord("c") + id) * 20, 4, batch=True)
    harness.step()
    late = harness.ask(3, "f" * 20, 4, batch=True)
    scheduler._admission.admit()
    with (
        mock.patch.object(type(scheduler._layout), "free_cells", 3),
        mock.patch.object(scheduler._tile_wait, "waits", return_value=False),
    ):
        assert scheduler._prefill([late], decodes=3) == []


def test_a_long_interactive_answer_keeps_steps_short() -> None:
    harness = _harness()
    harness.ask(2000, "hello", 5)
    harness.seconds = 100.0
    harness.run()
    harness.seconds = 0.01
    assert not harness.scheduler._is_patient
    harness.seconds = 61.0
    harness.ask(2001, "a line", 1, batch=True)
    harness.run()
    assert harness.scheduler._is_patient


@pytest.mark.parametrize("quiet", [False, True])
def test_an_interactive_request_makes_steps_short_for_a_while(quiet: bool) -> None:
    harness = _harness()
    harness.ask(2000, "hello", 1)
    harness.run()
    if quiet:
        harness.seconds = 61.0
        harness.ask(2001, "hello again", 1, batch=True)
        harness.run()
        harness.seconds = 0.01
    with mock.patch.object(PrefillChunks, "fill", autospec=True, side_effect=PrefillChunks.fill) as fill:
        _first_step(harness)
    assert fill.called == quiet
