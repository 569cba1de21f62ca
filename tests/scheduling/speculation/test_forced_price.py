"""Tokens that a grammar forces are drafted only while that pays: a simulation with known prices."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from paddock.scheduling import Plan, Request
from paddock.scheduling.speculation import Speculation
from paddock.types import Drafting, DraftParams, Sampled, Span
from tests.options import draft_params
from tests.scheduling.harness import Harness
from tests.tiers import full

AUTO = draft_params(n_max=0, lookup=32, priced=True)  # no draft model


def _plan(answers: int, params: DraftParams, *, constrained: bool = True) -> Plan:
    sampler: Any = SimpleNamespace(grammar="a grammar" if constrained else None)
    requests = [Request(id, [id], sampler, 1000, namespace=None) for id in range(answers)]
    spans = [
        Span(id, 1, [7], sampler, drafting=Drafting(request.tokens, params)) for id, request in enumerate(requests)
    ]
    return Plan([], spans, requests, decodes=answers)


def _speed(
    policy: str, *, right: float, cost: float, answers: int, forced: float, disturbed: float = 0.0, steps: int = 3000
) -> float:
    """Tokens per second of answers of which each step has a forced run of 1 to 12 tokens with this probability."""
    chance = random.Random(1)
    speculation, cache = Speculation(), Harness().scheduler.cache
    tokens = time = 0.0
    for _ in range(steps):
        plan = _plan(answers, AUTO)
        speculation.propose(plan, cache, frozenset())
        results: list[Sampled | None] = []
        for span in plan.spans:
            run = chance.randint(1, 12) if chance.random() < forced else 0
            assert span.drafting is not None and not span.draft
            most = {"never": 0, "always": AUTO.lookup, "auto": span.drafting.params.lookup}[policy]
            drafted = min(run, most)
            accepted = next((n for n in range(drafted) if chance.random() >= right), drafted)
            source: Any = "grammar" if drafted else None
            results.append(Sampled(1, drafted=drafted, draft_source=source, more=[Sampled(1)] * accepted))
        took = 0.01 * (1 + cost * sum(result.drafted for result in results if result is not None))
        factor = chance.uniform(2, 10) if chance.random() < disturbed else 1 + 0.1 * chance.random()
        speculation.observe(plan, results, took * factor)
        tokens += sum(1 + len(result.more) for result in results if result is not None)
        time += took
    return tokens / time


@full
@pytest.mark.parametrize(
    ("right", "cost", "answers", "forced", "disturbed"),
    [
        (1.0, 1.0, 8, 1.0, 0.0),
        (0.7, 1.0, 8, 1.0, 0.05),
        (0.0, 0.3, 2, 1.0, 0.0),
        (0.5, 0.8, 1, 0.5, 0.05),
        (0.98, 0.9, 1, 0.05, 0.0),
    ],
)
def test_never_much_slower_than_without(
    right: float, cost: float, answers: int, forced: float, disturbed: float
) -> None:
    never, auto = (
        _speed(policy, right=right, cost=cost, answers=answers, forced=forced, disturbed=disturbed)
        for policy in ("never", "auto")
    )
    assert auto >= 0.98 * never


@pytest.mark.parametrize("answers", [1, 2, 8])
def test_forced_tokens_that_pay_are_drafted(answers: int) -> None:
    never, always, auto = (
        _speed(policy, right=0.98, cost=0.3 / answers, answers=answers, forced=0.5)
        for policy in ("never", "always", "auto")
    )
    assert auto > 1.3 * never
    assert auto > 0.9 * always


def test_only_requests_of_auto_with_a_grammar_are_limited() -> None:
    cache = Harness().scheduler.cache
    for params, constrained, limit in (
        (AUTO, True, 0),
        (AUTO, False, 32),
        (draft_params(lookup=9, priced=False), True, 9),
    ):
        plan = _plan(2, params, constrained=constrained)
        Speculation().propose(plan, cache, frozenset())
        assert [span.drafting and span.drafting.params.lookup for span in plan.spans] == [limit, limit]
