"""When guessing pays: a simulation with known prices and acceptance rates."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from paddock.scheduling.speculation.acceptance import Acceptance, ModelAcceptance
from paddock.scheduling.speculation.draft_price import DraftPrice, Tile

MOST = 16


class Machine:
    """How many times as long as expected its steps take. Other processes disturb single steps, or all for a while, and
    its clock rate changes.
    """

    def __init__(self, seed: int, *, disturbed: float = 0.0, drifts: bool = False, is_busy: bool = False) -> None:
        self._chance = random.Random(seed)
        self._disturbed, self._drifts, self._is_busy = disturbed, drifts, is_busy
        self._level, self._level_steps, self._busy_steps = 1.0, 0, 0

    def factor(self) -> float:
        chance = self._chance
        factor = 1 + 0.1 * chance.random()
        if chance.random() < self._disturbed:
            factor *= chance.uniform(2, 10)
        if self._drifts:
            if not self._level_steps:
                self._level, self._level_steps = chance.uniform(1, 1.5), chance.randint(20, 150)
            self._level_steps -= 1
            factor *= self._level * chance.lognormvariate(0, 0.07)
        if self._is_busy:
            if self._busy_steps:
                self._busy_steps -= 1
                factor *= chance.uniform(1, 10)
            elif chance.random() < 0.01:
                self._busy_steps = chance.randint(3, 30)
        return factor


@dataclass
class Load:
    """Answers whose guesses are right with a probability. In some steps there is no guess. Every `answer` tokens other
    answers begin, whose steps take another time.
    """

    right: float
    answers: int = 1
    available: float = 0.7
    answer: int = 10**9


def simulate(
    load: Load,
    seconds: Callable[[int], float],
    *,
    policy: str,
    machine: Machine | None = None,
    steps: int = 2000,
    seed: int = 1,
    most: int = MOST,
    tile: Tile | None = None,
    switch: float = 0.0,
) -> float:
    """Tokens per second. `seconds` is what a step takes by the number of drafted tokens. The machine makes it longer by
    factors that count for the measurements only. There are at most `most` guesses for a step, and it fills a `tile`
    with as many as that says; the estimate of its seconds may be wrong. The first step without drafts takes longer by
    the part `switch`.
    """
    chance = random.Random(seed)
    machine = machine or Machine(seed)
    price, acceptance = DraftPrice(), Acceptance(ModelAcceptance())
    price.tile = tile or Tile(0, 0.0)
    tokens = time = 0.0
    left, length = float(load.answer), 1.0
    drafted = 0
    for _ in range(steps):
        was_drafted, drafted = drafted > 0, 0
        if left <= 0:
            left, length = load.answer, chance.uniform(0.5, 1.5)
            price.interrupt(load.answers)
        if chance.random() < load.available:
            p = next(acceptance.probabilities("ngram", 6))
            places = range(1, most // load.answers + 1)
            chances = sorted((p**place for place in places for _ in range(load.answers)), reverse=True)
            drafted = {"never": 0, "always": len(chances), "auto": price.count(load.answers, chances)}[policy]
        accepted = 0
        for answer in range(load.answers):
            own = drafted // load.answers + (answer < drafted % load.answers)
            while own and (is_right := chance.random() < load.right):
                acceptance.observe("ngram", 6, is_right=is_right)
                accepted, own = accepted + 1, own - 1
            # The first token after the accepted ones tells whether the next guess would have been right.
            acceptance.observe("ngram", 6, is_right=not own and chance.random() < load.right)
        step = seconds(drafted) * (1 + switch * (was_drafted and not drafted))
        price.observe(load.answers, drafted, accepted, length * step * machine.factor())
        tokens += load.answers + accepted
        time += step
        left -= 1 + accepted / load.answers
    return tokens / time


def linear(cost: float) -> Callable[[int], float]:
    return lambda drafted: 0.01 * (1 + cost * drafted)


def stepped(drafted: int) -> float:
    """A GPU: small batches cost almost nothing, larger ones need another kernel."""
    return 0.004 * (1.0 + 0.01 * drafted if drafted < 8 else 2.5)


def gpu(drafted: int) -> float:
    return 0.004 * (1.0 + 0.06 * drafted if drafted < 8 else 2.5)


def tiled(drafted: int) -> float:
    """A CPU: a tile of 64 rows takes less time than 32 rows one by one."""
    return 0.04 * (1 + 0.5 * drafted if drafted < 63 else 16.0)


machines = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "disturbed": st.sampled_from([0.0, 0.02, 0.05, 0.1]),
        "drifts": st.booleans(),
        "is_busy": st.booleans(),
    }
)
loads = st.builds(
    Load,
    right=st.floats(0.0, 0.99),
    answers=st.sampled_from([1, 2, 8]),
    available=st.sampled_from([0.1, 0.7, 1.0]),
    answer=st.sampled_from([100, 400, 10**9]),
)


# A simulation takes too long to look for the simplest one that fails.
@settings(phases=set(Phase) - {Phase.shrink})
@given(load=loads, cost=st.floats(0.0, 1.5), machine=machines)
def test_never_much_slower_than_the_better_of_never_and_always(
    load: Load, cost: float, machine: dict[str, Any]
) -> None:
    never, always, auto = (
        simulate(load, linear(cost), policy=policy, machine=Machine(**machine), seed=machine["seed"])
        for policy in ("never", "always", "auto")
    )
    # Busy periods of up to 30 steps while the price is learned: of 2,000 such simulations, 3 were below 0.98 (0.94).
    assert auto >= (0.9 if machine["is_busy"] else 0.98) * never, "it must not be noticed where it does not pay"
    assert auto >= 0.5 * always, "it has to find out first"


@pytest.mark.parametrize(("cost", "gain"), [(0.78, 1.05), (0.5, 1.35)])
def test_the_first_edits_on_a_noisy_machine_gain_what_they_can(cost: float, gain: float) -> None:
    """Costs of the demo model on two cores (docs/lab.md), with both libraries. The best of all fixed lengths would be
    1.12 or 1.5 times as fast as without.
    """
    load = Load(right=0.97, available=0.95)
    speeds = [
        simulate(load, linear(cost), policy="auto", machine=machine, steps=200, seed=seed)
        for seed in range(20)
        for machine in [Machine(seed, disturbed=0.05, drifts=True, is_busy=True)]
    ]
    never = 1 / linear(cost)(0)
    assert statistics.median(speeds) > gain * never
    assert min(speeds) > 0.95 * never


@pytest.mark.parametrize(("right", "cost", "gain"), [(0.97, 0.3, 1.8), (0.9, 0.3, 1.4), (0.97, 0.05, 4.0)])
def test_right_guesses_pay(right: float, cost: float, gain: float) -> None:
    load = Load(right, available=0.95)
    never, auto = (simulate(load, linear(cost), policy=policy) for policy in ("never", "auto"))
    assert auto > gain * never


def test_costs_that_jump_are_learned() -> None:
    load = Load(0.8, available=1.0)
    never, auto = (simulate(load, stepped, policy=policy) for policy in ("never", "auto"))
    assert auto > 2.5 * never


@settings(phases=set(Phase) - {Phase.shrink})
@given(load=loads, switch=st.floats(0.0, 1.0), machine=machines)
def test_a_gpu_that_records_its_graph_again_is_not_made_slower(
    load: Load, switch: float, machine: dict[str, Any]
) -> None:
    never, auto = (
        simulate(load, gpu, policy=policy, machine=Machine(**machine), seed=machine["seed"], switch=switch)
        for policy in ("never", "auto")
    )
    # With eight answers on a machine that drifts and is disturbed, 0.978 was seen.
    assert auto >= (0.9 if machine["is_busy"] else 0.97) * never


@pytest.mark.parametrize("right", [0.1, 0.3])
@pytest.mark.parametrize(("available", "switch"), [(0.1, 1.0), (0.3, 0.5), (0.7, 1.0)])
def test_wrong_guesses_cost_nothing_where_a_graph_is_recorded_again(
    right: float, available: float, switch: float
) -> None:
    """Each of these was 0.85 to 0.98 when only the step with the drafts counted."""
    load = Load(right, available=available, answer=100)
    never, auto = (simulate(load, gpu, policy=policy, switch=switch) for policy in ("never", "auto"))
    assert auto > 0.99 * never


def test_right_guesses_pay_where_a_graph_is_recorded_again() -> None:
    load = Load(0.9, available=0.9)
    never, auto = (simulate(load, stepped, policy=policy, switch=0.5) for policy in ("never", "auto"))
    assert auto > 2.5 * never


@pytest.mark.parametrize(("right", "gain"), [(0.99, 2.3), (0.98, 1.8)])
def test_whole_tiles_are_drafted_where_most_guesses_are_right(right: float, gain: float) -> None:
    load = Load(right, available=0.95)
    tile = Tile(63, 0.04 * 14)  # verifying takes a little longer than computing a prompt
    never, rows, tiles = (
        simulate(load, tiled, policy=policy, most=most, tile=tile)
        for policy, most in (("never", 63), ("auto", 16), ("auto", 63))
    )
    assert tiles > gain * never
    assert tiles > 1.1 * rows


@settings(phases=set(Phase) - {Phase.shrink})
@given(
    load=st.builds(Load, right=st.floats(0.0, 0.99), available=st.sampled_from([0.1, 0.7, 1.0])),
    cost=st.floats(2.0, 60.0),
    estimate=st.floats(0.3, 1.5),
    machine=machines,
)
def test_tiles_never_cost_much(load: Load, cost: float, estimate: float, machine: dict[str, Any]) -> None:
    """Also if their estimated price is wrong."""

    def seconds(drafted: int) -> float:
        return 0.01 * (1 + (cost if drafted == 63 else 0.7 * drafted))

    never, auto = (
        simulate(
            load,
            seconds,
            policy=policy,
            machine=Machine(**machine),
            seed=machine["seed"],
            most=63,
            tile=Tile(63, 0.01 * cost * estimate),
        )
        for policy in ("never", "auto")
    )
    # A tile whose price was estimated as a third, on a disturbed machine: 0.970 was seen.
    assert auto >= (0.9 if machine["is_busy"] else 0.96) * never


def test_a_tile_is_drafted_only_if_there_are_guesses_for_all_of_it() -> None:
    price = DraftPrice()
    price.tile = Tile(63, 0.01)
    for _ in range(10):
        price.observe(1, 0, 0, 0.01)
    for _ in range(10):
        drafted = price.count(1, [0.99] * 62)
        assert drafted <= 32
        price.observe(1, drafted, drafted, tiled(drafted))
    assert price.count(1, [0.99] * 63) in (0, 63)


def test_a_busy_machine_does_not_end_guessing() -> None:
    """Some of the steps take many times as long, with drafts and without."""
    load = Load(0.97, available=0.95)
    never, auto = (
        simulate(load, linear(0.3), policy=policy, machine=Machine(1, disturbed=0.2)) for policy in ("never", "auto")
    )
    assert auto > 1.7 * never


def test_a_slower_machine_is_not_taken_for_a_price() -> None:
    """All steps take 1.4 times as long from some moment on, with drafts too. That says nothing about drafts."""
    price = DraftPrice()
    drafted = [0, 0]
    for slow in (False, True):
        for _ in range(400):
            count = price.count(1, [0.97, 0.94, 0.91, 0.88])
            price.observe(1, count, count, linear(0.7)(count) * (1.4 if slow else 1.0))
            drafted[slow] += count
    assert drafted[True] > 0.9 * drafted[False]


def test_it_starts_again_when_guesses_become_right() -> None:
    """After a long time of guesses that were all wrong, the loss is small and right guesses are found."""
    price = DraftPrice()
    seconds = linear(0.5)
    time = useless = 0.0
    for _ in range(2000):
        drafted = price.count(1, [0.6, 0.5])  # the estimate is wrong
        price.observe(1, drafted, 0, seconds(drafted))
        time += seconds(drafted)
        useless += seconds(drafted) - seconds(0)
    assert useless < 0.01 * time + 6 * seconds(0)
    gained = 0
    for _ in range(1000):
        drafted = price.count(1, [0.95, 0.9])
        price.observe(1, drafted, drafted, seconds(drafted))
        gained += drafted
    assert gained > 1000


def test_the_first_steps_are_without_drafts_and_the_first_drafts_are_short() -> None:
    """So that their cost is known before much is lost."""
    price = DraftPrice()
    counts = []
    for _ in range(8):
        counts.append(price.count(1, [0.99] * 8))
        price.observe(1, counts[-1], counts[-1], 0.01 * (1 + 0.1 * counts[-1]))
    assert counts[:3] == [0] * 3
    assert counts[3:6] == [2, 4, 8]


def test_a_step_without_drafts_comes_again() -> None:
    """Without one, nobody knows whether drafts still pay."""
    price = DraftPrice()
    counts = []
    for _ in range(200):
        counts.append(price.count(1, [0.99] * 4))
        price.observe(1, counts[-1], counts[-1], linear(0.1)(counts[-1]))
    assert all(0 in counts[start : start + 9] for start in range(len(counts) - 9))
    assert counts.count(0) < 0.15 * len(counts)
