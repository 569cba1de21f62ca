"""Prefixes are computed once: shared between running requests and restored from host memory."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paddock.scheduling import Scheduler
from paddock.types import Save
from tests.scheduling.harness import CUT, Harness, answer_alone


@pytest.mark.parametrize("whole", [False, True, CUT])
@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("ram", [1 << 20, 0])
def test_a_prompt_sent_by_many_at_once_is_computed_once(whole: bool | str, unified: bool, ram: int) -> None:
    harness = Harness(parallel=8, whole=whole, kv_unified=unified, cache_ram_bytes=ram)
    prompt = "<|im_start|>system\n" + "x" * 200 + "<|im_end|><|im_start|>user\n"
    for id in range(8):
        harness.ask(id, f"{prompt}{id}", max_tokens=2)
    harness.run()
    shared = len(harness.engine.vocab.tokenize(prompt, add_special=True, parse_special=True))
    assert harness.computed < shared + 8 * 4


@pytest.mark.parametrize("whole", [False, True, CUT])
@pytest.mark.parametrize("unified", [True, False])
def test_a_repeated_prompt_is_not_computed_again(unified: bool, whole: bool | str) -> None:
    harness = Harness(kv_unified=unified, whole=whole)
    first = harness.ask(1, "a" * 100, max_tokens=1)
    harness.run()
    second = harness.ask(2, "a" * 100, max_tokens=1)
    harness.run()
    assert (first.cached, second.cached) == (0, 100)
    assert harness.computed == 101 + 1


@given(st.integers(20, 400), st.integers(0, 60), st.integers(0, 300), st.booleans())
def test_the_second_prompt_with_a_system_text_finds_all_of_it(
    size: int, question: int, known: int, unified: bool
) -> None:
    harness = Harness(n_ctx=2048, whole=CUT, kv_unified=unified, cache_ram_bytes=1 << 24)
    harness.ask(1, "s" * known, max_tokens=1)  # another prompt, which begins with the same tokens
    harness.run()
    for id, letter in ((2, "a"), (3, "b")):
        request = harness.ask(id, "s" * size + "t" + letter * (question + 1), max_tokens=1, system_size=size + 2)
        harness.run()
    assert request.cached >= size + 2 - 15, "a little less if it differs from the other prompt just before"
    if known < size - 20:
        assert request.cached == size + 2


@given(st.integers(0, 1500), st.integers(100, 6000), st.floats(0, 1), st.booleans(), st.booleans())
@example(prefix=300, new=6000, part=0.5, unified=True, deterministic=False)
def test_a_prompt_that_parts_anywhere_in_a_known_one_computes_little_again(
    prefix: int, new: int, part: float, unified: bool, deterministic: bool
) -> None:
    """Also in a long text behind a known prefix: at most 256 tokens, 1,024 if it was short, and what a branch needs."""
    harness = Harness(n_ctx=8192, batch=512, parallel=2, whole=CUT, kv_unified=unified, cache_ram_bytes=1 << 26)
    texts = ["p" * prefix + "?", "p" * prefix + "d" * new]
    for id, text in enumerate(texts):
        harness.ask(id, text, max_tokens=1, deterministic=deterministic)
        harness.run()
    shared = int(part * (prefix + new))
    asked = harness.ask(2, texts[1][:shared] + "q" * 20, max_tokens=1, deterministic=deterministic)
    harness.run()
    spacing = 256 if new > 1024 + 256 or shared <= prefix else 1024
    assert asked.cached >= shared - spacing - (128 if deterministic else 16)


@given(st.integers(0, 3000), st.integers(1, 5000), st.integers(0, 40), st.integers(0, 1 << 22))
def test_a_prompt_pauses_no_more_often_than_checkpoints_are_allowed(prefix: int, new: int, most: int, ram: int) -> None:
    harness = Harness(n_ctx=8192, batch=512, whole=CUT, cache_ram_bytes=ram)
    shape = msgspec.structs.replace(harness.engine.shape, checkpoints=most)
    harness.scheduler = Scheduler(
        shape=shape, n_ctx=8192, slots=4, n_batch=512, end_tokens=harness.engine.vocab.end_tokens
    )
    for text in ("p" * prefix + "?", "p" * prefix + "d" * new):
        request = harness.ask(1, text, max_tokens=1)
        plan = harness.step()
        assert plan is not None
        planned = len(request.snapshot_points)
        harness.run()
    own = 2  # where it branches off, and its end
    assert planned <= own + min(most, ram // 16 // shape.snapshot.bytes(1))


def test_a_short_turn_of_a_conversation_does_not_pause() -> None:
    harness = Harness(n_ctx=2048, batch=512, whole=CUT, cache_ram_bytes=1 << 26)
    harness.ask(1, "p" * 300, max_tokens=1)
    harness.run()
    turn = harness.ask(2, "p" * 300 + "t" * 500, max_tokens=1)
    harness.step()
    assert turn.snapshot_points == {turn.prompt_size - 1}


def test_duplicates_of_a_sequence_that_goes_back_become_the_shared_cells() -> None:
    """The harness compares the counters with the cells in each step."""
    harness = Harness(n_ctx=700, parallel=2, whole=CUT, cache_ram_bytes=64 << 10)
    for id, size in enumerate((70, 70, 140, 70, 70)):
        harness.ask(id, "a" * size, max_tokens=3)
    harness.run()
    assert harness.text(4) == answer_alone("a" * 70, 3, n_ctx=700)[0]


def test_branches_below_a_duplicate_prefix_are_shared() -> None:
    harness = Harness(n_ctx=1024, batch=64)
    harness.ask(1, "abc" + "x" * 200)
    harness.ask(2, "abd" + "y" * 200)
    for _ in range(20):
        harness.step()
    third = harness.ask(3, "abd" + "y" * 200 + "?", max_tokens=1)
    harness.step()
    assert third.cached == 204
    harness.run()
    assert harness.text(3) == answer_alone("abd" + "y" * 200 + "?", max_tokens=1, n_ctx=1024)[0]


def test_a_long_finished_prompt_is_written_back_in_parts_while_others_generate() -> None:
    harness = Harness(n_ctx=1024, batch=64)
    harness.ask(1, "b", max_tokens=60)
    harness.step()
    harness.ask(2, "a" * 300, max_tokens=1)
    most, parts = harness.engine.shape.max_copied, 0
    while (1, 0) not in harness.finished:
        plan = harness.step()
        assert plan is not None and plan.spans, "no step only copies"
        copied = sum(op.end - op.start for op in plan.operations if isinstance(op, Save))
        assert copied <= most
        parts += copied > 0
    assert parts > 300 // most
    again = harness.ask(3, "a" * 300, max_tokens=1)
    harness.run()
    assert again.cached == 300


def test_resident_cells_are_freed_when_they_are_needed() -> None:
    harness = Harness(n_ctx=320, parallel=2)
    harness.ask(1, "b", max_tokens=40)
    harness.step()
    for id in range(2, 8):
        harness.ask(id, f"{id}" * 250, max_tokens=1)
    harness.run()
    assert {id: harness.text(id, 0) for id in range(2, 8)} == {
        id: answer_alone(f"{id}" * 250, max_tokens=1, n_ctx=320)[0] for id in range(2, 8)
    }
    assert harness.scheduler.preemptions == 0


@pytest.mark.parametrize("whole", [False, True, CUT])
def test_several_answers_to_one_prompt_compute_it_once(whole: bool | str) -> None:
    harness = Harness(whole=whole)
    answers = [harness.ask(1, "a" * 100, index=index) for index in range(3)]
    harness.run()
    assert [answer.cached for answer in answers] == [0, 100, 100]
    assert {harness.text(1, index) for index in range(3)} == {answer_alone("a" * 100)[0]}


def test_the_third_prompt_restores_the_snapshot_that_the_second_took() -> None:
    harness = Harness(whole=True)
    seen = []
    for question in "xyz":
        seen.append(harness.ask(1, "s" * 100 + question * 30, max_tokens=1))
        harness.run()
    assert [request.cached for request in seen] == [0, 0, 101]


def test_a_conversation_continues_from_the_snapshot_of_its_last_answer() -> None:
    harness = Harness(whole=True)
    first = harness.ask(1, "a" * 100, max_tokens=10)
    harness.run()
    again = harness.ask(2, "a" * 100, max_tokens=10)
    harness.run()
    after = harness.ask(3, "a" * 100 + harness.text(1) + "b", max_tokens=1)
    harness.run()
    assert again.cached == first.prompt_size - 1
    assert after.cached == first.prompt_size + 9, "the last token of an answer is never computed"


def test_no_snapshot_is_taken_where_it_saves_too_little() -> None:
    harness = Harness(whole=True, batch=64)
    harness.ask(1, "a" * 10, max_tokens=1)
    plan = harness.step()
    assert plan is not None and [len(span.tokens) for span in plan.spans] == [11], "a short prompt does not pause"


@pytest.mark.parametrize("whole", [False, True, CUT])
def test_a_request_without_a_namespace_neither_reads_nor_stores_prefixes(whole: bool | str) -> None:
    harness = Harness(whole=whole)
    requests = [harness.ask(id, "a" * 100, max_tokens=1, namespace=None) for id in range(2)]
    harness.run()
    requests.append(harness.ask(3, "a" * 100, max_tokens=1))
    harness.run()
    assert [request.cached for request in requests] == [0, 0, 0]


def test_answers_are_not_stored_where_copying_is_too_expensive() -> None:
    harness = Harness()
    shape = msgspec.structs.replace(harness.engine.shape, saves_answers=False)
    harness.scheduler = Scheduler(
        shape=shape, n_ctx=512, slots=4, n_batch=32, end_tokens=harness.engine.vocab.end_tokens
    )
    first = harness.ask(1, "a" * 40, max_tokens=20)
    harness.run()
    assert harness.scheduler.cache.stored == first.prompt_size
    again = harness.ask(2, "a" * 40 + harness.text(1), max_tokens=20)
    harness.run()
    assert again.cached == 60, "from its cells"
    assert harness.text(2) == answer_alone("a" * 40 + harness.text(1), 20)[0]
