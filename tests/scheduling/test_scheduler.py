"""The scheduler driven by the fake engine: answers, preemption, prefill and cancellation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.fake_text import fake_logprobs
from tests.scheduling.harness import CUT, Harness, Memories, Texts, answer_alone
from tests.tiers import full


@given(st.lists(Texts, min_size=1, max_size=8), st.integers(2, 40), st.booleans(), st.booleans(), Memories)
def test_every_request_gets_the_answer_it_would_get_alone(
    texts: list[str], batch: int, unified: bool, continuous: bool, whole: bool | str
) -> None:
    harness = Harness(batch=batch, kv_unified=unified, cont_batching=continuous, whole=whole)
    for id, text in enumerate(texts):
        harness.ask(id, text)
    harness.run()
    for id, text in enumerate(texts):
        assert (harness.text(id), harness.finished[id, 0]) == answer_alone(text)


@given(st.lists(Texts, min_size=2, max_size=8), Memories)
def test_preempted_requests_get_their_full_answer(texts: list[str], whole: bool | str) -> None:
    """With cells for one and a half long requests the youngest are preempted, and all are answered."""
    harness = Harness(n_ctx=160, whole=whole)
    for id, text in enumerate(texts):
        harness.ask(id, text)
    harness.run()
    for id, text in enumerate(texts):
        assert (harness.text(id), harness.finished[id, 0]) == answer_alone(text, n_ctx=160)


@pytest.mark.parametrize("whole", [False, True, CUT])
def test_a_full_cache_preempts_the_youngest(whole: bool | str) -> None:
    harness = Harness(n_ctx=200, parallel=3, whole=whole)
    prompts = {id: f"{id}" * 66 for id in range(3)}  # 67 tokens each, growing to 128
    for id, text in prompts.items():
        harness.ask(id, text)
    harness.run()
    assert harness.scheduler.preemptions > 0
    assert {id: harness.text(id) for id in prompts} == {id: answer_alone(text)[0] for id, text in prompts.items()}


@full
@pytest.mark.parametrize("ram", [1 << 20, 0])
def test_a_preempted_leader_does_not_wait_for_its_followers(ram: int) -> None:
    for size in range(50, 95):
        harness = Harness(n_ctx=160, parallel=4, batch=6, cache_ram_bytes=ram)
        harness.ask(1, "d" * 66)
        while not harness.answers[1, 0]:
            harness.step()
        for id, end in ((2, ""), (3, "b"), (4, "c")):
            harness.ask(id, "a" * size + end)
        harness.run()
        assert len(harness.finished) == 4


def test_generation_continues_during_a_long_prefill() -> None:
    harness = Harness(batch=64)
    harness.ask(1, "short", max_tokens=200)
    while not harness.answers[1, 0]:
        harness.step()
    harness.ask(2, "b" * 400, max_tokens=1)
    seen = len(harness.answers[1, 0])
    steps = 0
    while (2, 0) not in harness.finished:
        harness.step()
        steps += 1
    assert steps > 3, "the prompt took several steps"
    assert len(harness.answers[1, 0]) >= min(seen + steps, 58)


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    harness = Harness(batch=32)
    harness.ask(1, "a" * 400, max_tokens=1)
    harness.ask(2, "b" * 30, max_tokens=1)
    order: list[int] = []
    while len(order) < 2:
        harness.step()
        order += [id for id, _ in harness.finished if id not in order]
    assert order == [2, 1]


def test_prompts_of_similar_length_are_computed_one_after_the_other() -> None:
    harness = Harness(batch=128)
    first, second = harness.ask(1, "a" * 400, max_tokens=1), harness.ask(2, "b" * 400, max_tokens=1)
    while not harness.finished:
        harness.step()
        assert not second.computed or first.computed >= 400
    assert list(harness.finished) == [(1, 0)]


def test_without_continuous_batching_requests_run_one_by_one() -> None:
    harness = Harness(cont_batching=False)
    for id in range(3):
        harness.ask(id, f"{id}" * 20)
    while (plan := harness.step()) is not None:
        assert len(plan.spans) <= 1
    assert list(harness.finished) == [(0, 0), (1, 0), (2, 0)]


def test_a_request_pinned_to_a_busy_slot_blocks_no_other() -> None:
    harness = Harness(parallel=2)
    harness.ask(1, "a" * 20, wanted_slot=0)
    pinned = harness.ask(2, "b" * 20, wanted_slot=0)
    other = harness.ask(3, "c" * 20)
    harness.step()
    assert (pinned.slot, other.slot) == (-1, 1)
    harness.run()
    assert pinned.slot == 0


@pytest.mark.parametrize("whole", [False, True, CUT])
def test_stream_ids_stay_adjacent_when_one_in_the_middle_ends(whole: bool | str) -> None:
    harness = Harness(kv_unified=False, parallel=4, whole=whole)
    for id, size in enumerate((50, 2, 50, 50)):
        harness.ask(id, f"{id}" * 10, max_tokens=size)
    while (plan := harness.step()) is not None:
        ids = [span.sequence for span in plan.spans]
        assert not ids or ids == list(range(ids[0], ids[0] + len(ids)))
    assert harness.text(3) == answer_alone("3" * 10, 50)[0]


def test_cancelled_requests_are_removed_from_queue_and_slots() -> None:
    harness = Harness(parallel=2, batch=16)
    for id in range(4):
        harness.ask(id, f"{id}" * 60)
    harness.step()
    for id in range(4):
        harness.scheduler.remove(id)
    harness.run()
    assert harness.finished == {}


def test_an_answer_that_fills_the_context_ends_with_length() -> None:
    harness = Harness(n_ctx=60)
    harness.ask(1, "a" * 40)
    harness.run()
    assert harness.finished[1, 0] == "length"
    assert len(harness.answers[1, 0]) == 60 - 41


@given(
    st.lists(st.tuples(Texts, st.integers(-1, 2), st.sampled_from([0, 1, 40])), min_size=1, max_size=8),
    st.sampled_from([160, 512]),
    st.booleans(),
    st.booleans(),
)
def test_every_prompt_token_gets_its_probability_exactly_once(
    requests: list[tuple[str, int, int]], n_ctx: int, unified: bool, deterministic: bool
) -> None:
    """With and without cached prefixes and preemption; `cached` counts no token that was computed."""
    harness = Harness(n_ctx=n_ctx, kv_unified=unified)
    asked = [
        harness.ask(id, text, max_tokens, prompt_probs=probs, deterministic=deterministic)
        for id, (text, probs, max_tokens) in enumerate(requests)
    ]
    harness.run()
    for id, (request, (text, probs, max_tokens)) in enumerate(zip(asked, requests, strict=True)):
        prompt = request.tokens[: request.prompt_size]
        expected = [fake_logprobs(prompt[:at], prompt[at], probs) for at in range(1, len(prompt))] if probs >= 0 else []
        assert harness.prompt_probs[id, 0] == expected
        assert probs < 0 or request.cached == 0
        assert (harness.text(id), harness.finished[id, 0]) == answer_alone(text, max_tokens, n_ctx)


def test_prompt_probabilities_of_a_step_are_limited() -> None:
    harness = Harness(n_ctx=2048, batch=1000, parallel=3)
    for id in range(3):
        harness.ask(id, f"{id}" * 500, max_tokens=1, prompt_probs=0)
    while (plan := harness.step()) is not None:
        assert sum(len(span.targets) for span in plan.spans) <= 128
    assert [len(harness.prompt_probs[id, 0]) for id in range(3)] == [500] * 3


def test_a_request_for_zero_tokens_only_computes_its_prompt() -> None:
    harness = Harness(batch=16)
    harness.ask(1, "a" * 50, max_tokens=0)
    harness.run()
    assert (harness.text(1), harness.finished[1, 0], harness.computed) == ("", "length", 51)
    again = harness.ask(2, "a" * 50, max_tokens=0)
    harness.run()
    assert (again.cached, harness.finished[2, 0]) == (50, "length")
