"""Whether a draft model pays: a simulation with known prices and acceptance rates."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from paddock.scheduling import Plan, Request
from paddock.scheduling.speculation import Speculation
from paddock.types import Drafting, DraftParams, Sampled, Span
from tests.options import draft_params
from tests.scheduling.harness import Harness
from tests.scheduling.speculation.test_draft_price import Machine, machines
from tests.tiers import examples

MOST = 4
AUTO = draft_params(n_max=MOST, lookup=0, priced=True)
EXPLICIT = draft_params(n_max=MOST, lookup=0, priced=False)
CACHE = Harness().scheduler.cache


@dataclass
class Load:
    """Each answer has so many tokens after a prompt of so many. Costs are relative to a step without drafts."""

    right: float
    """How likely a drafted token is right."""
    sure: float = 1.0
    """How likely the draft model goes on."""
    drafting: float = 0.1
    """What a pass of the draft model costs."""
    verifying: float = 0.1
    """What a drafted token costs the large model."""
    answers: int = 1
    prompt: int = 100
    answer: int = 300
    on_gpu: bool = False

    @property
    def batch(self) -> int:
        """So many tokens of new text the draft model computes in a step."""
        return 512 if self.on_gpu else 64

    def reading(self, tokens: int) -> float:
        """What it costs to compute so many tokens of new text."""
        return self.drafting * (1 + (0.02 if self.on_gpu else 0.4) * (tokens - 1)) if tokens else 0.0


@dataclass
class Answer:
    """What is left to write, and to read for the draft model."""

    left: int
    behind: int


def _plan(answers: int, params: DraftParams | None) -> Plan:
    sampler: Any = object()
    requests = [Request(id, [id], sampler, 1000, namespace=None) for id in range(answers)]
    spans = [Span(id, 1, [7], sampler) for id in range(answers)]
    if params is not None:
        for span, request in zip(spans, requests, strict=True):
            span.drafting = Drafting(request.tokens, params)
    return Plan([], spans, requests, decodes=answers)


def _speed(load: Load, params: DraftParams | None, machine: Machine | None = None, *, seed: int, steps: int) -> float:
    """Tokens per step without drafts. The machine makes steps longer by factors that count for measurements only."""
    chance = random.Random(seed)
    machine = machine or Machine(seed)
    speculation = Speculation()
    answers = [Answer(load.answer, load.prompt) for _ in range(load.answers)]
    tokens = time = 0.0
    for _ in range(steps):
        plan = _plan(load.answers, params)
        speculation.propose(plan, CACHE, frozenset())
        results: list[Sampled | None] = []
        read = passes = verified = 0
        for span, answer in zip(plan.spans, answers, strict=True):
            most = span.drafting.params.n_max if span.drafting is not None else 0
            reads = min(answer.behind, load.batch - read) if most else 0
            read, answer.behind = read + reads, answer.behind - reads
            drafted = 0
            if most and not answer.behind:
                drafted = next((n for n in range(most) if chance.random() >= load.sure), most)
                passes = max(passes, min(drafted, most - 1))
            accepted = next((n for n in range(drafted) if chance.random() >= load.right), drafted)
            source: Any = "model" if drafted else None
            results.append(Sampled(1, drafted=drafted, draft_source=source, more=[Sampled(1)] * accepted))
            answer.behind += 1 if drafted else 1 + accepted
            answer.left -= 1 + accepted
            tokens += 1 + accepted
            verified += drafted
        took = 1 + load.reading(read) + load.drafting * passes + load.verifying * verified
        speculation.observe(plan, results, 0.01 * took * machine.factor())
        time += took
        for index, answer in enumerate(answers):
            if answer.left <= 0:
                answers[index] = Answer(load.answer, load.prompt)
                speculation.price.interrupt(load.answers)
                speculation.model_price.interrupt(load.answers)
    return tokens / time


loads = st.builds(
    Load,
    right=st.floats(0.0, 0.95),
    sure=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    drafting=st.sampled_from([0.02, 0.1, 0.3]),
    verifying=st.sampled_from([0.02, 0.25, 0.7]),
    answers=st.sampled_from([1, 2]),
    prompt=st.sampled_from([10, 200, 2000]),
    answer=st.sampled_from([50, 300, 2000]),
    on_gpu=st.booleans(),
)


# A simulation takes too long to look for the simplest one that fails.
@settings(examples(50), phases=set(Phase) - {Phase.shrink})
@given(load=loads, machine=machines)
def test_never_much_slower_than_without(load: Load, machine: dict[str, Any]) -> None:
    auto = _speed(load, AUTO, Machine(**machine), seed=machine["seed"], steps=4000)
    # Of 400 such simulations the worst was 0.984.
    assert auto >= 0.98 * load.answers


@pytest.mark.parametrize(
    ("load", "gain"),
    [
        (Load(0.8, drafting=0.1, verifying=0.02, on_gpu=True), 1.8),
        (Load(0.9, sure=0.5, drafting=0.02, verifying=0.25, on_gpu=True), 1.3),
        (Load(0.9, drafting=0.1, verifying=0.02, answers=2, prompt=2000, on_gpu=True), 1.8),
        (Load(0.9, drafting=0.02, verifying=0.25, prompt=10), 1.6),
    ],
)
def test_right_drafts_pay(load: Load, gain: float) -> None:
    auto, always = (_speed(load, params, seed=1, steps=2000) for params in (AUTO, EXPLICIT))
    assert auto > gain * load.answers
    assert auto > 0.9 * always


def test_it_starts_again_when_drafts_become_right() -> None:
    """The draft model is asked rarely while it is wrong."""
    speculation, drafted = Speculation(), []
    for step in range(4000):
        plan = _plan(1, AUTO)
        speculation.propose(plan, CACHE, frozenset())
        (span,) = plan.spans
        assert span.drafting is not None
        drafted.append(most := span.drafting.params.n_max)
        more = [Sampled(1)] * most if step >= 2000 else []
        source: Any = "model" if most else None
        speculation.observe(plan, [Sampled(1, drafted=most, draft_source=source, more=more)], 0.01 * (1 + 0.1 * most))
    assert sum(most > 0 for most in drafted[200:2000]) < 0.1 * 1800
    assert sum(drafted[3000:]) > 2500


def test_the_type_draft_is_not_priced() -> None:
    """The user has asked for the draft model. It is used from the first step on, with its own limits."""
    assert AUTO.limited("draft") == EXPLICIT
    speculation = Speculation()
    for params, n_max in ((AUTO, 0), (EXPLICIT, MOST)):
        plan = _plan(2, params)
        speculation.propose(plan, CACHE, frozenset())
        assert [span.drafting and span.drafting.params.n_max for span in plan.spans] == [n_max, n_max]


def test_a_step_in_which_the_model_is_unsure_is_none_without_drafts() -> None:
    """Its time would spoil what other guesses are compared with."""
    speculation = Speculation()
    for params, seconds in ((None, 0.01), (EXPLICIT, 0.03)):
        for _ in range(10):
            plan = _plan(1, params)
            speculation.propose(plan, CACHE, frozenset())
            speculation.observe(plan, [Sampled(1)], seconds)
    assert speculation.price.plain(1) == speculation.model_price.plain(1) == 0.01


def test_the_step_after_a_draft_of_one_source_says_nothing_about_the_prices_of_others() -> None:
    """Where a GPU records its graph again. Every second step is such a step."""
    speculation = Speculation()
    drafting, plain = _plan(1, AUTO), _plan(1, None)
    drafted = Sampled(1, drafted=2, draft_source="model", more=[Sampled(2)])
    for seconds in [0.01] * 4 + [0.012, 0.014, 0.01] * 12 + [0.012, 0.014] * 12:
        plan, result = (drafting, drafted) if seconds == 0.012 else (plain, Sampled(1))
        speculation.observe(plan, [result], seconds)
    assert speculation.price.plain(1) == pytest.approx(0.01)
    assert speculation.model_price.plain(1) == pytest.approx(0.01)
