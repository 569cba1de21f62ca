"""Whatever is guessed, the answers are the same and all cells are accounted for."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.fake_text import next_token
from paddock.scheduling import ContextShift
from paddock.scheduling.cache import Cache
from paddock.scheduling.plan import Plan
from paddock.scheduling.prefix_cache import PrefixCache
from paddock.scheduling.speculation import Speculation, Tile
from paddock.types import Adapters
from tests.options import draft_params
from tests.scheduling.harness import Harness, Sets, Texts, answer_alone
from tests.tiers import examples

ALWAYS = draft_params(lookup=9, priced=False)
AUTO = draft_params(lookup=9, priced=True)


class Adversary(Speculation):
    """Guesses right tokens, wrong ones and nonsense, as many as allowed."""

    def __init__(self, seed: int, wrong: float) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._wrong = wrong

    def propose(self, plan: Plan, cache: Cache, end_tokens: frozenset[int], tile: Tile | None = None) -> None:
        for span, request in zip(plan.spans, plan.requests, strict=True):
            most = span.drafting.params.lookup if span.drafting is not None else 0
            for _ in range(self._random.randint(0, most)):
                token = next_token([*request.tokens, *span.draft], request.sampler.params, request.adapters)
                if self._random.random() < self._wrong or token in end_tokens:
                    token = self._random.randrange(97, 123)
                span.draft = [*span.draft, token]
                span.draft_source = "ngram"


Requests = st.lists(
    st.tuples(Texts, st.sampled_from([1, 2, 7, 1000]), st.sampled_from([None, ALWAYS, AUTO]), st.booleans(), Sets),
    min_size=1,
    max_size=7,
)


@given(
    requests=Requests,
    waits=st.lists(st.integers(0, 12), min_size=7, max_size=7),
    n_ctx=st.sampled_from([100, 160, 512]),
    batch=st.integers(4, 40),
    parallel=st.integers(1, 5),
    unified=st.booleans(),
    wrong=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 100),
)
def test_no_guess_changes_an_answer(
    requests: list[tuple[str, int, Any, bool, Adapters]],
    waits: list[int],
    n_ctx: int,
    batch: int,
    parallel: int,
    unified: bool,
    wrong: float,
    seed: int,
) -> None:
    """After each step the harness compares the counters with the cells, and the engine checks that no more cells are
    used than there are.
    """
    adversary = Adversary(seed, wrong)
    harness = Harness(n_ctx=n_ctx, batch=batch, parallel=parallel, kv_unified=unified, speculation=adversary)
    asked = []
    for id, (text, max_tokens, draft, deterministic, adapters) in enumerate(requests):
        fields = {"draft": draft, "deterministic": deterministic, "adapters": adapters}
        asked.append(harness.ask(id, text, max_tokens, **fields))
        for _ in range(waits[id]):
            harness.step()
    harness.run()
    for id, (request, (text, max_tokens, draft, deterministic, adapters)) in enumerate(
        zip(asked, requests, strict=True)
    ):
        assert (harness.text(id), harness.finished[id, 0]) == answer_alone(text, max_tokens, n_ctx, adapters)
        assert 0 <= request.accepted <= request.drafted
        if draft is None or deterministic:
            assert request.drafted == 0


@given(
    texts=st.lists(Texts, min_size=1, max_size=5),
    short=st.integers(0, 8),
    seed=st.integers(0, 100),
    wrong=st.sampled_from([0.0, 0.5]),
)
def test_an_engine_without_cells_for_drafts_goes_on_without_them(
    texts: list[str], short: int, seed: int, wrong: float
) -> None:
    harness = Harness(n_ctx=160, parallel=3, short=short, speculation=Adversary(seed, wrong))
    for id, text in enumerate(texts):
        harness.ask(id, text, 40, draft=ALWAYS)
    harness.run()
    for id, text in enumerate(texts):
        assert harness.text(id) == answer_alone(text, 40, 160)[0]


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("draft", [ALWAYS, AUTO])
def test_a_text_that_repeats_itself_takes_fewer_steps(unified: bool, draft: Any) -> None:
    """The second answer is the first one again, so its tokens are found in the prefix tree."""
    harness = Harness(kv_unified=unified)
    counts = []
    for id in (1, 2):
        request = harness.ask(id, "b" * 30, 300, draft=draft)
        steps = 0
        while (plan := harness.step()) is not None:
            steps += bool(plan.spans)
        counts.append(steps)
    assert harness.text(1) == harness.text(2)
    assert counts[1] < counts[0] * 0.6
    assert request.accepted > 10


def _second_answer(first: dict[str, Any], second: dict[str, Any]) -> int:
    """How many tokens of a second answer to the same prompt were guessed."""
    harness = Harness(adapters=("a",))
    harness.ask(1, "secret" * 5, 200, draft=ALWAYS, **first)
    harness.run()
    request = harness.ask(2, "secret" * 5, 200, draft=ALWAYS, **second)
    harness.run()
    assert harness.text(1) == harness.text(2) or first.get("adapters") != second.get("adapters")
    return request.accepted


def test_answers_of_other_tenants_are_no_guesses() -> None:
    alone = _second_answer({"namespace": None}, {"namespace": "b"})
    assert _second_answer({"namespace": "a"}, {"namespace": "a"}) > alone + 10
    assert _second_answer({"namespace": "a"}, {"namespace": "b"}) == alone
    assert _second_answer({"namespace": "a"}, {"namespace": ""}) == alone
    assert _second_answer({"namespace": ""}, {"namespace": "b"}) == alone
    assert _second_answer({"namespace": "a"}, {"namespace": None}) == alone, "it reads nothing of the cache"


def test_deterministic_requests_are_never_guessed_for() -> None:
    assert _second_answer({"namespace": "a"}, {"namespace": "a", "deterministic": True}) == 0


def test_a_guess_is_no_use_of_the_prefix() -> None:
    """Looking up what follows must not change which prefix is evicted next."""
    harness = Harness()
    harness.ask(1, "b" * 30, 300, draft=ALWAYS)
    harness.run()
    cache = harness.scheduler.cache
    assert isinstance(cache, PrefixCache)
    before = [node.id for node in reversed(cache._tree._lru)]
    tokens = harness.engine.vocab.tokenize("b" * 30, add_special=True, parse_special=True)
    assert cache.nearest("", tokens, 64).following
    assert [node.id for node in reversed(cache._tree._lru)] == before


@examples(30)
@given(text=Texts, seed=st.integers(0, 50))
def test_guesses_and_context_shifts(text: str, seed: int) -> None:
    answers = []
    for speculation in (None, Adversary(seed, 0.3)):
        harness = Harness(n_ctx=120, speculation=speculation)
        draft = None if speculation is None else ALWAYS
        tokens = harness.engine.vocab.tokenize(text, add_special=True, parse_special=True)
        request = harness.ask(1, text, 300, draft=draft, shift=ContextShift(4, 0))
        assert request.tokens == tokens
        harness.run()
        answers.append(harness.text(1))
    assert answers[0] == answers[1]


def test_steps_with_drafts_do_not_spoil_the_cost_of_generation() -> None:
    harness = Harness(speculation=Adversary(3, 0.0))
    harness.ask(1, "a" * 10, 40, draft=ALWAYS)
    harness.step()
    harness.scheduler._budget._generation.observe(1, 0.01)
    before = harness.scheduler._budget.generating(1)
    while (plan := harness.scheduler.schedule()) is not None:
        harness.engine.apply(plan.operations)
        if plan.spans:
            results = harness.engine.decode(plan.spans)
            drafted = sum(len(span.draft) for span in plan.spans)
            harness.scheduler.commit(plan, results, 0.01 * (1 + drafted))
    assert harness.scheduler._budget.generating(1) == pytest.approx(before, rel=0.2)
