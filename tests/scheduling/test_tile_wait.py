"""The time of a batch of short lines after one system prompt in shared cells, on simulated machines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling import Request, StepBudget
from paddock.scheduling.chunks import PrefillChunks
from paddock.scheduling.fairness import FairQueue
from paddock.scheduling.tile_wait import TileWait
from tests.scheduling.harness import Harness
from tests.scheduling.test_chunks import _KNOWN, _seconds, train
from tests.scheduling.test_token_cost import X86, Machine, machines

_SLOTS = 8


def _batch(machine: Machine, lines: list[tuple[int, int]], *, waits: bool, budget: StepBudget | None = None) -> float:
    """Seconds for lines of so many tokens of their own and of their answer."""
    budget = budget or StepBudget(unified=True)
    train(budget, machine)
    chunks, wait = PrefillChunks(budget, FairQueue()), TileWait(budget)
    queue = list(enumerate(lines))
    running: dict[int, tuple[Request, int]] = {}
    now = 0.0
    while queue or running:
        free = (slot for slot in range(_SLOTS) if slot not in {one.sequence for one, _ in running.values()})
        while queue and len(running) < _SLOTS:
            id, (size, output) = queue.pop(0)
            tokens = [id] * (_KNOWN + size)
            request = Request(id, tokens, None, output, computed=_KNOWN, sequence=next(free), arrival=id, batch=True)
            running[id] = request, output
        requests = [request for request, _ in running.values()]
        prompts = [request for request in requests if not request.is_generating]
        decodes = [request for request in requests if request.is_generating]
        if waits and wait.waits(prompts, len(decodes)):
            prompts = []
        share = (
            chunks.divide(prompts, requests, room=512 - len(decodes), contended=False, decodes=len(decodes))
            if prompts
            else []
        )
        if chunks.prompts_only and share:
            decodes = []
        computed = [(request.computed, count) for request, count in share]
        assert computed or decodes, "something is computed"
        seconds = _seconds(machine, computed, len(decodes))
        budget.observe(answers=len(decodes), chunks=computed, seconds=seconds)
        now += seconds
        work = [*((request, count) for request, count in share), *((request, 1) for request in decodes)]
        for request, count in work:
            request.computed += count
            if request.computed < len(request.tokens):
                continue
            request.tokens = [*request.tokens, 0]
            request, left = running.pop(request.id)
            if left > 1:
                running[request.id] = request, left - 1
    return now


AVX512 = Machine(0.004, 0.5e-6, 2.2e-5)
"""As measured with SmolLM2-135M Q8_0, two threads and a library compiled for the CPU."""
Lines = st.lists(st.tuples(st.integers(2, 80), st.integers(1, 60)), min_size=32, max_size=60)


@pytest.mark.parametrize(("machine", "part"), [(X86, 0.9), (AVX512, 0.8)])
def test_short_lines_gain_where_tiles_are_cheap(machine: Machine, part: float) -> None:
    lines = [(20, 16)] * 60
    waiting, at_once = (_batch(machine, lines, waits=waits) for waits in (True, False))
    assert waiting < part * at_once


@given(machines, Lines)
def test_waiting_costs_little(machine: Machine, lines: list[tuple[int, int]]) -> None:
    """At the end of a batch, when nothing more fills a tile."""
    waiting, at_once = (_batch(machine, lines, waits=waits) for waits in (True, False))
    assert waiting < 1.1 * at_once


@given(machines, Lines, st.booleans())
def test_nothing_waits_in_streams_and_on_a_gpu(machine: Machine, lines: list[tuple[int, int]], gpu: bool) -> None:
    budget = StepBudget(unified=gpu, pass_rows=512 if gpu else 0)
    train(budget, machine)
    wait = TileWait(budget)
    prompts = [
        Request(id, [id] * (_KNOWN + size), None, 1, computed=_KNOWN, batch=True) for id, (size, _) in enumerate(lines)
    ]
    assert not wait.waits(prompts, 3)


def test_an_interactive_prompt_is_computed_at_once() -> None:
    budget = StepBudget(unified=True)
    train(budget, X86)
    line, question = (Request(id, [id] * (_KNOWN + 20), None, 1, computed=_KNOWN, batch=id == 0) for id in range(2))
    wait = TileWait(budget)
    assert wait.waits([line], 3)
    assert not wait.waits([line], 0), "nothing else is computed"
    assert not wait.waits([line, question], 3)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 20))
def test_every_line_is_answered(sizes: list[int], output: int) -> None:
    harness = Harness(n_ctx=2048, batch=128)
    harness.seconds = 0.02
    for id, size in enumerate(sizes):
        harness.ask(id, "ab" * 40 + "b" * size, output, batch=True)
    while harness.step() is not None:
        pass
    assert len(harness.finished) == len(sizes)
