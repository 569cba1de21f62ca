"""When guessing pays: a simulation with known prices and acceptance rates."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddock.scheduling.speculation.acceptance import Acceptance, ModelAcceptance
from paddock.scheduling.speculation.draft_price import DraftPrice

MOST = 16


def simulate(
    right: float,
    seconds: Callable[[int], float],
    *,
    policy: str,
    steps: int = 4000,
    disturbed: float = 0.0,
    answers: int = 1,
    available: float = 0.7,
) -> float:
    """The tokens per second of answers whose guesses are right with this probability each. `seconds` is what a step
    takes by the number of drafted tokens. In some steps there is no guess. Every step is measured a little too long,
    and a `disturbed` one many times too long.
    """
    chance = random.Random(1)
    price, acceptance = DraftPrice(), Acceptance(ModelAcceptance())
    tokens = time = 0.0
    for _ in range(steps):
        drafted = 0
        if chance.random() < available:
            p = acceptance.probability("ngram", 6)
            chances = sorted(
                (p**place for place in range(1, MOST // answers + 1) for _ in range(answers)), reverse=True
            )
            drafted = {"never": 0, "always": len(chances), "auto": price.count(answers, chances)}[policy]
        accepted = 0
        for answer in range(answers):
            own = drafted // answers + (answer < drafted % answers)
            while own and (is_right := chance.random() < right):
                acceptance.observe("ngram", 6, is_right=is_right)
                accepted, own = accepted + 1, own - 1
            # The first token after the accepted ones tells whether the next guess would have been right.
            acceptance.observe("ngram", 6, is_right=not own and chance.random() < right)
        took = seconds(drafted)
        factor = chance.uniform(2, 10) if chance.random() < disturbed else 1 + 0.1 * chance.random()
        price.observe(answers, drafted, accepted, took * factor)
        tokens += answers + accepted
        time += took
    return tokens / time


def linear(cost: float) -> Callable[[int], float]:
    return lambda drafted: 0.01 * (1 + cost * drafted)


def stepped(drafted: int) -> float:
    """A GPU: small batches cost almost nothing, larger ones need another kernel."""
    return 0.004 * (1.0 + 0.01 * drafted if drafted < 8 else 2.5)


@settings(deadline=None)
@given(
    right=st.floats(0.0, 0.99),
    cost=st.floats(0.0, 1.5),
    answers=st.sampled_from([1, 2, 8]),
    available=st.sampled_from([0.1, 0.7, 1.0]),
    disturbed=st.sampled_from([0.0, 0.02, 0.05]),
)
def test_never_much_slower_than_the_better_of_never_and_always(
    right: float, cost: float, answers: int, available: float, disturbed: float
) -> None:
    never, always, auto = (
        simulate(right, linear(cost), policy=policy, answers=answers, available=available, disturbed=disturbed)
        for policy in ("never", "always", "auto")
    )
    assert auto >= 0.98 * never, "it must not be noticed where it does not pay"
    assert auto >= 0.7 * always, "it has to find out first"


@pytest.mark.parametrize(("right", "cost", "gain"), [(0.97, 0.3, 1.8), (0.9, 0.3, 1.4), (0.97, 0.05, 4.0)])
def test_right_guesses_pay(right: float, cost: float, gain: float) -> None:
    never, auto = (simulate(right, linear(cost), policy=policy, available=0.95) for policy in ("never", "auto"))
    assert auto > gain * never


def test_costs_that_jump_are_learned() -> None:
    never, auto = (simulate(0.8, stepped, policy=policy, available=1.0) for policy in ("never", "auto"))
    assert auto > 2.5 * never


def test_a_busy_machine_does_not_end_guessing() -> None:
    """Some of the steps take many times as long, with drafts and without."""
    never, auto = (
        simulate(0.97, linear(0.3), policy=policy, available=0.95, disturbed=0.1) for policy in ("never", "auto")
    )
    assert auto > 1.6 * never


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
    for _ in range(10):
        counts.append(price.count(1, [0.99] * 8))
        price.observe(1, counts[-1], counts[-1], 0.01 * (1 + 0.1 * counts[-1]))
    assert counts[:6] == [0] * 6
    assert counts[6] == 4
    assert counts[-1] > 4
