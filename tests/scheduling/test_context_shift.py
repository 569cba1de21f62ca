"""Context shift: which tokens are dropped, and that an answer continues from exactly those that are left."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paddock.engine.fake_text import next_token
from paddock.scheduling import ContextShift
from paddock.types import SamplingParams
from tests.options import draft_params
from tests.scheduling.harness import Harness, Memories
from tests.tiers import examples

_N_CTX = 60
"""Less than 64: the fake's answers have no end before that."""
Shifts = st.builds(ContextShift, st.integers(0, 80), st.integers(0, 80))
Texts = st.text(st.sampled_from("ab"), min_size=1, max_size=40)


@given(st.integers(2, 10_000), st.integers(0, 20_000), st.integers(0, 20_000))
def test_a_shift_drops_something_and_never_the_newest_token(n_ctx: int, keep: int, discard: int) -> None:
    dropped = ContextShift(keep, discard).dropped(n_ctx)
    assert len(dropped) >= 1
    assert 0 <= dropped.start < dropped.stop < n_ctx


@given(st.integers(16, 10_000), st.integers(0, 20_000), st.integers(0, 20_000))
def test_the_numbers_are_those_of_llama_server(n_ctx: int, keep: int, discard: int) -> None:
    """`server-context.cpp`: the newest token is not in its list yet."""
    n_keep = min(n_ctx - 4, keep)
    n_left = n_ctx - 1 - n_keep
    n_discard = min(discard or n_left // 2, n_left - 1)
    assert ContextShift(keep, discard).dropped(n_ctx) == range(n_keep, n_keep + n_discard)


def _expected(prompt: list[int], shift: ContextShift, count: int) -> list[int]:
    """The answer as a fresh prefill of the remaining tokens gives it after each shift."""
    history, answer = list(prompt), []
    for _ in range(count):
        token = next_token(history, SamplingParams(seed=7), ())
        history.append(token)
        answer.append(token)
        if len(history) == _N_CTX:
            dropped = shift.dropped(_N_CTX)
            history = history[: dropped.start] + history[dropped.stop :]
    return answer


@examples(200)
@given(
    st.lists(st.tuples(Texts, Shifts, st.integers(1, 110)), min_size=1, max_size=6),
    st.integers(2, 40),
    st.booleans(),
    Memories,
    st.sampled_from([0, 1 << 12, 1 << 20]),
    st.sampled_from([0, 3]),
)
@example([("a", ContextShift(2), 59), ("aaaaaa", ContextShift(1, 1), 54)], 3, False, True, 0, 0)
def test_every_answer_is_that_of_the_remaining_tokens(
    asked: list[tuple[str, ContextShift, int]], batch: int, unified: bool, whole: bool | str, ram: int, draft: int
) -> None:
    """Also beside others with the same prefix, with preemption, and with drafts. The harness checks the cells."""
    harness = Harness(
        n_ctx=_N_CTX, batch=batch, kv_unified=unified, whole=whole, cache_ram_bytes=ram, draft=draft, parallel=3
    )
    drafting = draft_params(priced=False) if draft else None
    requests = [
        harness.ask(id, text, size, shift=shift, draft=drafting) for id, (text, shift, size) in enumerate(asked)
    ]
    prompts = [list(request.tokens) for request in requests]
    harness.run()
    harness.scheduler.check_idle()
    for id, (_, shift, size) in enumerate(asked):
        assert harness.answers[id, 0] == _expected(prompts[id], shift, size)
        assert harness.finished[id, 0] == "length"
        assert requests[id].produced == size
        assert requests[id].given_size == len(prompts[id])


@pytest.mark.parametrize("unified", [True, False])
def test_a_shift_leaves_the_shared_prefix_of_others_alone(unified: bool) -> None:
    harness = Harness(n_ctx=_N_CTX if not unified else 200, kv_unified=unified, parallel=3)
    text = "shared prefix " * 2
    harness.ask(1, text + "a", 400, shift=ContextShift(4))
    other = harness.ask(2, text + "b", 20)
    harness.run()
    alone = Harness(n_ctx=_N_CTX if not unified else 200, kv_unified=unified)
    alone.ask(2, text + "b", 20)
    alone.run()
    assert harness.answers[2, 0] == alone.answers[2, 0]
    assert not other.is_shifted


def test_kept_tokens_come_from_the_cache() -> None:
    harness = Harness(n_ctx=_N_CTX, batch=64)
    request = harness.ask(1, "a" * 40, 200, shift=ContextShift(keep=30))
    harness.run()
    shifts = 1 + (200 - 20) // 14
    assert harness.computed <= 40 + 200 + shifts * (_N_CTX - 30), "30 tokens are reused in every shift"
    assert request.cached == 0, "the client's prompt was not cached"


def test_without_a_shift_the_answer_ends_with_the_context() -> None:
    harness = Harness(n_ctx=_N_CTX)
    request = harness.ask(1, "a" * 10, 1000)
    harness.run()
    assert harness.finished[1, 0] == "length"
    assert len(request.tokens) == _N_CTX


def test_only_an_answer_that_reached_the_end_is_truncated() -> None:
    def truncated(size: int, shift: ContextShift | None) -> list[bool]:
        harness = Harness(n_ctx=_N_CTX)
        request = harness.ask(1, "a" * 10, size, shift=shift)
        seen = []
        commit = harness.scheduler.commit
        while (plan := harness.scheduler.schedule()) is not None:
            harness.engine.apply(plan.operations)
            if plan.spans:
                seen += [progress.truncated for progress in commit(plan, harness.engine.decode(plan.spans))]
        assert request.produced == len(seen)
        return seen

    room = _N_CTX - len(Harness(n_ctx=_N_CTX).ask(1, "a" * 10).tokens)
    assert truncated(1000, None) == [False] * (room - 1) + [True]
    assert truncated(room - 1, None) == [False] * (room - 1)
    assert truncated(room + 2, ContextShift(0)) == [False] * room + [True] * 2
