"""Finished sequences keep their cells: later requests continue or share them, and they are reclaimed when needed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.idle_cells import idle_cells
from paddock.scheduling import Plan
from paddock.types import Fork, Operation, Restore, Save
from tests.scheduling.harness import CUT, Harness, answer_alone

_COPIES = (Fork, Restore)


def _operations(harness: Harness, kind: type | tuple[type, ...]) -> list[Operation]:
    """Run to the end. Returns the cache operations of this kind."""
    found: list[Operation] = []
    while (plan := harness.step()) is not None:
        found += [operation for operation in plan.operations if isinstance(operation, kind)]
    return found


@pytest.mark.parametrize("unified", [True, False])
def test_without_host_memory_prefixes_are_reused_from_cells(unified: bool) -> None:
    harness = Harness(kv_unified=unified, cache_ram_bytes=0)
    harness.ask(1, "a" * 100, max_tokens=1)
    harness.run()
    again = harness.ask(2, "a" * 100, max_tokens=1)
    harness.run()
    assert again.cached == 100
    assert harness.scheduler.cache.stored == 0


def test_a_conversation_continues_in_its_stream_without_a_copy() -> None:
    harness = Harness(kv_unified=False, parallel=3)
    texts = {id: f"{id}" * 60 for id in range(3)}
    for id, text in texts.items():
        harness.ask(id, text, max_tokens=8)
    harness.run()
    for id, text in texts.items():
        turn = harness.ask(10 + id, text + harness.text(id) + "?", max_tokens=8)
        assert _operations(harness, _COPIES) == []
        assert turn.cached >= 61 + len(harness.answers[id, 0]) - 1, "perhaps without the last token of the answer"
        assert harness.text(10 + id) == answer_alone(text + harness.text(id) + "?", max_tokens=8)[0]


def test_a_branch_of_a_long_conversation_gets_a_stream_of_its_own() -> None:
    harness = Harness(kv_unified=False, parallel=2)
    harness.ask(1, "s" * 40 + "a" * 200, max_tokens=1)
    harness.run()
    branch = harness.ask(2, "s" * 40 + "b", max_tokens=1)
    harness.run()
    again = harness.ask(3, "s" * 40 + "a" * 200, max_tokens=1)
    assert _operations(harness, _COPIES) == []
    assert (branch.cached, again.cached) == (41, 240)


_Tails = st.lists(
    st.tuples(st.sampled_from(["s" * 40, "s" * 90]), st.text(st.sampled_from("ab"), min_size=1, max_size=40)),
    min_size=1,
    max_size=7,
)


@given(_Tails, st.booleans(), st.integers(1, 4), st.sampled_from([False, CUT]), st.booleans())
def test_no_prompt_is_cut_off_by_one_that_continues_its_stream(
    prompts: list[tuple[str, str]], gpu: bool, parallel: int, memory: object, unified: bool
) -> None:
    """One after the other, with no time for copies in between: each is found again, but for a few tokens."""
    options: dict[str, Any] = {"kv_unified": unified, "whole": memory, "n_gpu_layers": -1 if gpu else 0}
    harness = Harness(parallel=parallel, cache_ram_bytes=8 << 20, n_ctx=1024, **options)
    texts = [system + tail for system, tail in prompts]
    for id, text in enumerate([*texts, *texts]):
        request = harness.ask(id, text, max_tokens=2)
        harness.run_until(id)
        if id >= len(texts):
            assert request.prompt_size - request.cached <= 17
    harness.run()
    for id, text in enumerate([*texts, *texts]):
        assert harness.text(id) == answer_alone(text, 2)[0]


def test_on_a_gpu_a_branch_is_forked_if_a_stream_is_free() -> None:
    harness = Harness(kv_unified=False, parallel=2, n_gpu_layers=-1)
    harness.ask(1, "s" * 60 + "a" * 30, max_tokens=1)
    harness.run_until(1)
    branch = harness.ask(2, "s" * 60 + "b" * 30, max_tokens=1)
    operations = harness.run_until(2)
    assert branch.cached == 61
    assert [type(operation) for operation in operations if isinstance(operation, Fork | Save)] == [Fork]
    third = harness.ask(3, "s" * 60 + "c" * 30, max_tokens=1)
    operations = harness.run_until(3)
    assert third.cached == 61
    assert any(isinstance(operation, Save) for operation in operations), "no stream is free"


def test_a_few_tokens_are_cut_off_without_a_copy() -> None:
    harness = Harness(kv_unified=False, parallel=2)
    harness.ask(1, "s" * 60 + "a" * 14, max_tokens=1)
    harness.run_until(1)
    again = harness.ask(2, "s" * 60 + "b", max_tokens=1)
    assert not any(isinstance(operation, Fork | Save) for operation in harness.run_until(2))
    assert again.cached == 61


def test_a_copy_that_does_not_pay_is_not_made_before_a_cut() -> None:
    harness = Harness(kv_unified=False, parallel=1)
    prices = harness.scheduler.prices
    for size in (100, 1000, 10_000):
        prices.save.observe(size * harness.engine.shape.bytes_per_token, size * 0.01)
        prices.prefill.observe(size, size * 0.0001)
    harness.ask(1, "s" * 60 + "a" * 30, max_tokens=1)
    harness.run_until(1)
    harness.ask(2, "s" * 60 + "b" * 30, max_tokens=1)
    assert not any(isinstance(operation, Save) for operation in harness.run_until(2))


def test_a_whole_stream_is_not_copied_for_the_end_that_is_cut_off() -> None:
    """Its copy takes less time than all of its tokens, but more than those that the next request does not have."""
    harness = Harness(kv_unified=False, parallel=1, n_ctx=512)
    prices = harness.scheduler.prices
    for size in (100, 1000, 10_000):
        prices.save.observe(size * harness.engine.shape.bytes_per_token, size * 0.001)
        prices.prefill.observe(size, size * 0.01)
    for id, end in enumerate(("a" * 30, "b" * 30, "b" * 10 + "c" * 20)):
        asked = harness.ask(id, "s" * 160 + end, max_tokens=1)
        assert not any(isinstance(operation, Save) for operation in harness.run_until(id)), end
    assert asked.cached == 171


def test_streams_that_host_memory_has_leave_the_pause_to_others() -> None:
    harness = Harness(kv_unified=False, parallel=4)
    prices, seconds = harness.scheduler.prices, 0.02 / 60
    for id in range(4):
        harness.ask(id, chr(ord("a") + id) * 60, max_tokens=1)
        harness.run_until(id)
        if id < 3:
            harness.tidy()
    for size in (100, 1000, 10_000):
        prices.save.observe(size * harness.engine.shape.bytes_per_token, size * seconds)
        prices.prefill.observe(size, size * seconds)
    for id in range(4, 8):
        harness.ask(id, chr(ord("a") + id) * 60, max_tokens=1)
    assert any(isinstance(operation, Save) for operation in harness.run_until(7))


def test_of_many_streams_that_are_reclaimed_at_once_only_some_are_copied() -> None:
    """Copies take as long as computing, and every request of the step waits for all of them."""
    harness = Harness(kv_unified=False, parallel=8)
    prices, seconds = harness.scheduler.prices, 0.02 / 60
    for size in (100, 1000, 10_000):
        prices.save.observe(size * harness.engine.shape.bytes_per_token, size * seconds)
        prices.prefill.observe(size, size * seconds)
    for id in range(8):
        harness.ask(id, chr(ord("a") + id) * 60, max_tokens=1)
        harness.run_until(id)
    for id in range(8, 16):
        harness.ask(id, chr(ord("a") + id) * 60, max_tokens=1)
    saves = [operation for operation in harness.run_until(8) if isinstance(operation, Save)]
    assert 1 <= len({operation.sequence for operation in saves}) <= 2


@pytest.mark.parametrize("unified", [True, False])
def test_write_back_keeps_the_cells_and_makes_reclaiming_free(unified: bool) -> None:
    harness = Harness(kv_unified=unified)
    harness.ask(1, "a" * 100, max_tokens=1)
    harness.run()
    cache = harness.scheduler.cache
    assert (cache.stored, cache.idle_cells) == (101, 101)
    for sequence in cache.resident:
        cache.reclaim(sequence)
    assert not any(isinstance(operation, Save) for operation in cache.take_operations())
    assert cache.used == 0


@pytest.mark.parametrize("unified", [True, False])
def test_write_back_waits_for_the_next_request_first(unified: bool) -> None:
    """A client often sends its next request at once. On streams, it would wait for the copy of a whole stream."""
    harness = Harness(kv_unified=unified)
    harness.ask(1, "a" * 100, max_tokens=1)
    scheduler = harness.scheduler
    while scheduler.running or scheduler.queued:
        harness.step()
    while not scheduler.has_time:
        plan = harness.step()
        assert plan is not None
        assert not any(isinstance(operation, Save) for operation in plan.operations)
    assert not scheduler.is_idle
    assert scheduler.schedule(silence=scheduler.write_back_delay / 2) is None, "it waits for the next request"
    plan = harness.step()
    assert plan is not None
    assert any(isinstance(operation, Save) for operation in plan.operations)


def test_cells_are_reclaimed_before_a_prefix_is_restored() -> None:
    """Also if nothing runs: otherwise only as much is restored as finished requests leave free."""
    harness = Harness(n_ctx=400)
    for id, letter in enumerate("abc"):
        harness.ask(id, letter * 250, max_tokens=1)
        harness.run()
    assert harness.scheduler.cache.free < 250
    again = harness.ask(9, "a" * 250, max_tokens=1)
    harness.run()
    assert again.cached == 250


def test_a_request_does_not_reclaim_what_it_shares() -> None:
    harness = Harness(n_ctx=800)
    for id, letter in enumerate("ab"):
        harness.ask(id, letter * 150, max_tokens=1)
        harness.run()
    assert harness.scheduler.cache.idle_cells > 300
    harness.ask(7, "a" * 150 + "c" * 500, max_tokens=1)
    assert _operations(harness, Restore) == []


def test_idle_cells_are_limited_while_a_request_runs() -> None:
    harness = Harness(n_ctx=400)
    for id in range(3):
        harness.ask(id, f"{id}" * 90, max_tokens=1)
        harness.run()
    cache, most = harness.scheduler.cache, harness.engine.shape.idle_cells
    assert cache.idle_cells > most, "idle cells slow down nothing while nothing runs"
    harness.ask(9, "z", max_tokens=40)
    harness.step()
    assert cache.idle_cells <= most
    recent = harness.ask(10, "2" * 90, max_tokens=1)
    old = harness.ask(11, "0" * 90, max_tokens=1)
    harness.run()
    assert (recent.cached, old.cached) == (90, 90), "from cells and from host memory"


def test_idle_cells_stay_until_they_have_cost_as_much_as_a_restore() -> None:
    harness = Harness(n_ctx=400)
    for id in range(3):
        harness.ask(id, f"{id}" * 90, max_tokens=1)
        harness.run()
    cache, shape = harness.scheduler.cache, harness.engine.shape
    restore = harness.scheduler.prices.restore
    for size in (100, 1000, 10_000):
        restore.observe(size * shape.bytes_per_token, size * 0.001)
    harness.ask(9, "z", max_tokens=40)
    harness.step()
    assert cache.idle_cells > shape.idle_cells, "a restore would take a thousandth of a second for each token"
    cache.charge_idle(0.0009)
    harness.step()
    assert cache.idle_cells > shape.idle_cells
    cache.charge_idle(0.0002)
    harness.step()
    assert cache.idle_cells <= shape.idle_cells


def test_what_host_memory_lacks_stays_in_cells_until_they_are_needed() -> None:
    harness = Harness(n_ctx=400, cache_ram_bytes=0)
    for id in range(3):
        harness.ask(id, f"{id}" * 90, max_tokens=1)
        harness.run()
    cache = harness.scheduler.cache
    harness.ask(9, "z", max_tokens=40)
    harness.step()
    cache.charge_idle(1000.0)
    harness.step()
    assert cache.idle_cells > 250


def test_write_back_without_room_gives_up_at_once() -> None:
    harness = Harness(n_ctx=2048, batch=512, cache_ram_bytes=100 << 10)
    harness.ask(1, "a" * 90, max_tokens=1)
    harness.run()
    harness.ask(2, "b" * 1000, max_tokens=1)
    harness.run()
    cache = harness.scheduler.cache
    assert cache.is_written_back
    harness.ask(3, "c" * 900, max_tokens=1)
    while (3, 0) not in harness.finished:
        harness.step()
    cache.write_back_some()
    assert cache.is_written_back


@pytest.mark.parametrize("options", [{}, {"kv_unified": False, "parts": True}])
def test_write_back_rests_while_others_generate(options: dict[str, Any]) -> None:
    """Streams too, where parts of them can be saved."""
    harness = Harness(n_ctx=1024, batch=64, **options)
    harness.ask(1, "a" * 300, max_tokens=1)
    harness.ask(2, "b", max_tokens=90)
    save = harness.scheduler.prices.save
    for size in (100, 1000, 10_000):  # a part takes longer than a step
        save.observe(size * 16 * harness.engine.shape.bytes_per_token, size * 0.004)
    steps = copies = 0
    while harness.scheduler.running or not steps:
        plan = harness.scheduler.schedule()
        assert isinstance(plan, Plan)
        steps += 1
        copies += any(isinstance(operation, Save) for operation in plan.operations)
        harness.engine.apply(plan.operations)
        harness.scheduler.commit(plan, harness.engine.decode(plan.spans), 0.01)
    assert 1 < copies <= steps / 8


@pytest.mark.parametrize("parts", [True, False])
def test_of_a_long_stream_only_new_tokens_are_saved(parts: bool) -> None:
    """Where they cannot be read alone, they wait until they are a quarter of the stream."""
    harness = Harness(kv_unified=False, parallel=2, n_ctx=512, parts=parts, buffer=True)
    harness.ask(1, "a" * 200, max_tokens=1)
    harness.run()
    harness.ask(2, "a" * 200 + "b" * 20, max_tokens=1)
    operations = harness.run_until(2)
    while not harness.scheduler.is_idle:
        plan = harness.step()
        assert plan is not None
        operations += plan.operations
    saved = [operation.end - operation.start for operation in operations if isinstance(operation, Save)]
    assert sum(saved) == (20 if parts else 0)


def test_a_large_prefix_is_restored_in_parts_while_others_generate() -> None:
    harness = Harness(n_ctx=1024, batch=64)
    harness.ask(1, "a" * 300, max_tokens=1)
    harness.run()
    cache, most = harness.scheduler.cache, harness.engine.shape.max_restored
    for sequence in cache.resident:
        cache.reclaim(sequence)
    harness.ask(2, "b", max_tokens=60)
    harness.step()
    again = harness.ask(3, "a" * 300, max_tokens=1)
    parts: list[int] = []
    while (3, 0) not in harness.finished:
        before = len(harness.answers[2, 0])
        plan = harness.step()
        assert isinstance(plan, Plan)
        restored = [
            piece for operation in plan.operations if isinstance(operation, Restore) for piece in operation.pieces
        ]
        parts.append(sum(piece.length for piece in restored))
        assert len(harness.answers[2, 0]) == before + 1, "the other answer goes on"
    assert max(parts) <= most
    assert sum(parts) + 1 == again.cached == 300, "the other answer has the first token in cells"
    harness.run()
    assert harness.text(3) == answer_alone("a" * 300, max_tokens=1, n_ctx=1024)[0]


def test_a_sequence_that_a_longer_one_contains_is_not_kept() -> None:
    harness = Harness()
    harness.ask(1, "a" * 50, max_tokens=1)
    harness.run()
    harness.ask(2, "a" * 80, max_tokens=1)
    harness.run()
    assert len(harness.scheduler.cache.resident) == 1
    assert harness.engine.used_cells == 81


@pytest.mark.parametrize("unified", [True, False])
def test_erasing_a_slot_frees_its_cells(unified: bool) -> None:
    harness = Harness(kv_unified=unified)
    slot = harness.ask(1, "a" * 50, max_tokens=1)
    harness.run()
    harness.scheduler.slots.erase(slot.slot)
    cache = harness.scheduler.cache
    assert (cache.used, cache.stored) == (0, 0)
    again = harness.ask(2, "a" * 50, max_tokens=1)
    harness.run()
    assert again.cached == 0


@given(st.floats(1e-4, 1), st.floats(-0.1, 1), st.integers(8, 4096), st.integers(16, 1 << 17))
def test_idle_cells_slow_a_step_by_at_most_three_percent(alone: float, more: float, length: int, n_ctx: int) -> None:
    count = idle_cells(alone, alone + more, length, n_ctx)
    assert 0 <= count <= n_ctx // 2
    assert count * more / length <= alone * 0.0301


@pytest.mark.parametrize("unified", [True, False])
def test_host_memory_keeps_the_newest_prefixes_beside_its_buffer(unified: bool) -> None:
    harness = Harness(kv_unified=unified, parallel=2, n_ctx=1024, batch=128, buffer=True, cache_ram_bytes=1000 << 10)
    for id in range(20):
        harness.ask(id, f"{id:03}" * 40, max_tokens=1)
        harness.run()
        harness.tidy()
    cache = harness.scheduler.cache
    for sequence in cache.resident:
        cache.reclaim(sequence)
    for id in (18, 19):
        again = harness.ask(100 + id, f"{id:03}" * 40, max_tokens=1)
        harness.run()
        assert again.cached >= 100
