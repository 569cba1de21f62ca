"""The cost of prompt tokens, on simulated machines where it is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from paddock.scheduling.token_cost import TILE, GenerationCost, PromptCost


@dataclass(frozen=True)
class Machine:
    base: float
    tiled: float
    """Seconds for each position before a token, in whole tiles."""
    rows: float
    """The same in smaller chunks."""

    def seconds(self, chunks: Sequence[tuple[int, int]]) -> float:
        return sum(
            count * (self.base + (self.tiled if count >= TILE else self.rows) * (start + count / 2))
            for start, count in chunks
        )


X86 = Machine(0.0038, 1.5e-6, 8.3e-6)
"""As measured with SmolLM2-135M Q8_0 and two threads."""
machines = st.builds(
    lambda base, tiled, factor: Machine(base, tiled, tiled * factor),
    st.floats(1e-5, 0.05),
    st.floats(0, 2e-5),
    st.floats(1, 8),
)
chunks = st.tuples(st.integers(0, 8000), st.integers(8, 600))


@given(st.floats(1e-5, 0.05), st.lists(st.lists(chunks, min_size=1, max_size=4), min_size=1, max_size=20), chunks)
def test_where_positions_cost_nothing(base: float, steps: list[list[tuple[int, int]]], asked: tuple[int, int]) -> None:
    machine, cost = Machine(base, 0, 0), PromptCost()
    assert not cost
    assert cost.seconds(*asked) == 0
    for step in steps:
        cost.observe(step, machine.seconds(step))
    assert cost
    assert cost.seconds(*steps[-1][0]) == pytest.approx(machine.seconds(steps[-1][:1]), rel=0.05)


@given(machines)
def test_a_long_prompt_teaches_both_parts(machine: Machine) -> None:
    cost = PromptCost()
    for start in range(0, 8192, 512):
        cost.observe([(start, 512)], machine.seconds([(start, 512)]))
    for start in (100, 3000, 7000):
        assert cost.seconds(start, 256) == pytest.approx(machine.seconds([(start, 256)]), rel=0.1)


@given(machines, st.integers(0, 8000), st.floats(0.01, 2), st.booleans())
def test_affordable_is_the_inverse_of_seconds(machine: Machine, start: int, seconds: float, tiled: bool) -> None:
    cost = PromptCost()
    for at in range(0, 4096, 256):
        cost.observe([(at, 256)], machine.seconds([(at, 256)]))
        cost.observe([(at, 32)], machine.seconds([(at, 32)]))
    count = cost.affordable(start, seconds, tiled=tiled)
    assume((count >= TILE) == tiled and count > 0)
    assert cost.seconds(start, count) <= seconds * 1.001
    assert cost.seconds(start, count + 1) >= seconds * 0.999 or count + 1 == TILE


def test_unified_tiles_hold_several_sequences() -> None:
    step = [(1000, 20)] * 4
    costs = [PromptCost(unified=unified) for unified in (False, True)]
    for cost in costs:
        for start in range(0, 2048, 512):
            cost.observe([(start, 512)], X86.seconds([(start, 512)]))
        cost.observe(step, X86.seconds([(1000, 80)]))
    assert costs[1].seconds(1000, TILE) == pytest.approx(X86.seconds([(1000, TILE)]), rel=0.1)


@given(st.floats(1e-4, 0.1), st.floats(1e-4, 0.02), st.integers(1, 32))
def test_generation(base: float, each: float, asked: int) -> None:
    cost = GenerationCost()
    assert cost.seconds(asked) == 0
    for answers in (1, 8, 3, 5, 2, 7, 4, 6) * 3:
        cost.observe(answers, base + answers * each)
    assert cost.seconds(0) == 0
    assert cost.seconds(asked) == pytest.approx(base + asked * each, rel=0.2)


def test_noise_at_small_positions_says_nothing_about_large_ones() -> None:
    cost = PromptCost()
    for start, seconds in ((0, 0.10), (20, 0.14), (5, 0.09), (30, 0.15), (10, 0.11)) * 4:
        cost.observe([(start, 20)], seconds)
    assert cost.seconds(1400, 20) < 3 * cost.seconds(0, 20)
