"""A thinking budget ends the reasoning at the same token, whatever is guessed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.fake_vocab import FakeVocab
from paddock.text.reply.format import Reasoning
from paddock.text.reply.formats import PLAIN
from paddock.types import GenerateRequest, TextPrompt
from paddock.worker.answers import Answer
from paddock.worker.prompts import Reply
from tests.options import draft_params
from tests.scheduling.harness import Harness
from tests.scheduling.speculation.test_any_guess import Adversary
from tests.tiers import examples

# The fake model writes letters at random: it opens and closes its reasoning often.
_FORMAT = replace(PLAIN, reasoning=Reasoning("a", "e"))
_ENDS = [(ord("e"),), tuple(b"..e"), tuple(b"eee")]


def _generate(text: str, reply: Reply, harness: Harness, **fields: Any) -> tuple[bytes, list[str], int]:
    """The answer, its reasoning and content by token, and how many of its tokens were guessed right."""
    answer = Answer(GenerateRequest(TextPrompt(text)), FakeVocab(), reply)
    request = harness.ask(1, text, 60, answer=answer, **fields)
    request.sampler.step_limit = answer.step_limit
    tokens, shown = bytearray(), []
    while (plan := harness.scheduler.schedule()) is not None:
        harness.engine.apply(plan.operations)
        if not plan.spans:
            continue
        results = harness.engine.decode(plan.spans, exact=plan.exact, adapters=plan.adapters)
        for progress in harness.scheduler.commit(plan, results, 0.01):
            # As the engine thread does.
            delta, forced = answer.advance(progress, 1.0), answer.forced_tokens()
            request.sampler.force(forced)
            request.sampler.step_limit = answer.step_limit
            tokens += b"" if progress.token is None else bytes([progress.token])
            shown.append("" if delta is None else f"{delta.reasoning}|{delta.text}")
    harness.scheduler.check_idle()
    return bytes(tokens), shown, request.accepted


@examples(200)
@given(
    text=st.text("ab", min_size=1, max_size=40),
    budget=st.integers(0, 12),
    end=st.sampled_from(_ENDS),
    opened=st.booleans(),
    is_parsed=st.booleans(),
    wrong=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 1000),
)
def test_guesses_do_not_change_where_the_budget_ends(
    text: str, budget: int, end: tuple[int, ...], opened: bool, is_parsed: bool, wrong: float, seed: int
) -> None:
    prefix = "a" if opened else ""
    reply = Reply(_FORMAT, (), prefix, is_parsed, frozenset(), budget, end, is_parsed=is_parsed)
    expected = _generate(text, reply, Harness())
    guessing = Harness(speculation=Adversary(seed, wrong))
    tokens, shown, _ = _generate(text, reply, guessing, draft=draft_params(lookup=9, priced=False))
    assert (tokens, shown) == expected[:2]


def test_most_of_the_reasoning_is_guessed() -> None:
    reply = Reply(_FORMAT, (), "a", True, frozenset(), 30, (ord("e"),))
    guessing = Harness(speculation=Adversary(1, 0.0))
    assert _generate("b", reply, guessing, draft=draft_params(lookup=9, priced=False))[2] > 20
