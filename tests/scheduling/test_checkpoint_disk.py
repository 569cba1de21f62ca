"""Whole states on disk, for models with checkpoints. The fake engine fails if a sequence continues with a wrong one."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import rule

from paddock.disk_cache import RETRY_AFTER
from paddock.scheduling.checkpoint_cache import CheckpointCache
from paddock.scheduling.radix_tree import common_prefix
from tests.scheduling.disk import DiskHarness, Files
from tests.scheduling.harness import CUT, answer_alone
from tests.scheduling.test_disk_tier import ThreeTiers
from tests.tiers import examples

_SYSTEM = "the horses of the paddock eat apples " * 3
_LONG_ANSWER = _SYSTEM + "and sleep in the barn"
"""The fake engine continues it up to 192 tokens."""
_Prompts = st.lists(st.text(st.sampled_from("ab"), min_size=20, max_size=90), min_size=1, max_size=5)
_LARGE, _SMALL = 1 << 20, 300 << 10
_Options = st.fixed_dictionaries({"kv_unified": st.booleans(), "cache_ram_bytes": st.sampled_from([_LARGE, _SMALL])})


def _harness(files: Files, **options: object) -> DiskHarness:
    return DiskHarness(files, whole=CUT, n_ctx=1024, **options)


def _stop(harness: DiskHarness) -> None:
    """What a worker does before it ends."""
    harness.settle()
    harness.tier.begin_flush()
    harness.tidy()
    harness.settle()


def test_a_conversation_continues_after_a_restart() -> None:
    files: Files = {}
    first = _harness(files)
    asked = first.ask(1, _LONG_ANSWER, 60)
    _stop(first)
    assert asked.computed >= asked.prompt_size + 32
    second = _harness(files)
    again = second.ask(2, _LONG_ANSWER, 60)
    second.settle()
    assert second.text(2) == first.text(1)
    assert again.cached == again.prompt_size - 1 == again.from_disk, "its last prompt"
    third = _harness(files)
    follow_up = third.ask(3, _LONG_ANSWER + first.text(1) + " and then?", 20)
    third.settle()
    assert follow_up.cached == asked.computed, "the end of its answer"
    assert third.text(3) == answer_alone(_LONG_ANSWER + first.text(1) + " and then?", 20, 1024)[0]


def test_a_common_beginning_is_found_by_another_prompt_after_a_restart() -> None:
    files: Files = {}
    first = _harness(files)
    for id, question in enumerate(("who?", "how?")):
        first.ask(id, _SYSTEM + question, 5)
        first.settle()
    _stop(first)
    second = _harness(files)
    other = second.ask(3, _SYSTEM + "is it?", 5)
    second.settle()
    assert other.cached >= len(_SYSTEM)
    assert second.text(3) == answer_alone(_SYSTEM + "is it?", 5, 1024)[0]


@given(st.booleans(), st.integers(2, 5), st.booleans())
def test_a_system_text_is_found_by_another_prompt_after_a_restart(unified: bool, turns: int, is_killed: bool) -> None:
    """Also if only one conversation had it, and after that one has grown."""
    files: Files = {}
    size = len(_SYSTEM) + 1
    for start in range(2):
        harness = _harness(files, kv_unified=unified, cache_ram_bytes=4 << 20)
        text = _SYSTEM + f"{start}" * 90
        for turn in range(turns):
            harness.ask(turn, text, 8, system_size=size)
            harness.settle()
            text += harness.text(turn) + "y" * 60
        if not is_killed:
            _stop(harness)
    later = _harness(files, kv_unified=unified, cache_ram_bytes=4 << 20)
    other = later.ask(1, _SYSTEM + "z" * 50, 5, system_size=size)
    later.settle()
    assert other.cached == other.from_disk == size
    assert later.text(1) == answer_alone(_SYSTEM + "z" * 50, 5, 1024)[0]


@example(
    ["a" * 15 + "b" + "a" * 4, "a" * 32, "a" * 33],
    {"kv_unified": False, "cache_ram_bytes": _LARGE},
    {"kv_unified": False, "cache_ram_bytes": _LARGE},
)
@given(_Prompts, _Options, _Options)
def test_prompts_are_found_after_a_restart(
    prompts: list[str], before: dict[str, object], after: dict[str, object]
) -> None:
    files: Files = {}
    first = _harness(files, **before)
    for id, prompt in enumerate(prompts):
        first.ask(id, prompt, 8)
    _stop(first)
    second = _harness(files, **after)
    for id, prompt in enumerate(prompts):
        known = list(files)
        request = second.ask(id, prompt, 8)
        second.settle()
        assert second.text(id) == answer_alone(prompt, 8, 1024)[0]
        on_disk = [
            entry.end
            for entry in known
            if entry.end < request.prompt_size
            and common_prefix(entry.tokens, request.tokens[: request.prompt_size]) == entry.end
        ]
        if after["cache_ram_bytes"] == _LARGE:  # a small memory may be full of what the prompts before it still need
            assert request.cached >= max(on_disk, default=0) - 32 + 1, "unless it would gain too little"


@given(_Prompts, st.sets(st.integers(0, 8)), st.sets(st.integers(0, 8)))
def test_failures_change_no_answer(prompts: list[str], unwritten: set[int], damaged: set[int]) -> None:
    files: Files = {}
    written = 0
    harness = _harness(files)
    for id, prompt in enumerate(prompts):
        harness.ask(id, prompt, 8)
        harness.settle()
        harness.tidy()
        harness.run_some()
        while harness.writes:
            harness.write_one(fails=written in unwritten)
            written += 1
            harness.run_some()
    harness = _harness(files)
    read = 0
    for id, prompt in enumerate(prompts):
        harness.ask(id, prompt, 8)
        harness.run_some()
        while harness.reads or harness.tier.waiting:
            if harness.reads:
                harness.read_one(damaged=[0] if read in damaged else [])
                read += 1
            harness.run_some()
        assert harness.text(id) == answer_alone(prompt, 8, 1024)[0]


def test_only_worthwhile_checkpoints_are_written() -> None:
    files: Files = {}
    harness = _harness(files)
    request = harness.ask(1, "x" * 900, 5)
    _stop(harness)
    cache = harness.scheduler.cache
    assert isinstance(cache, CheckpointCache)
    assert len(cache._checkpoints) > 2
    assert [entry.end for entry in files] == [request.prompt_size - 1], "the answer adds too little"


def test_a_state_larger_than_host_memory_is_not_read() -> None:
    files: Files = {}
    first = _harness(files)
    first.ask(1, _SYSTEM, 5)
    _stop(first)
    assert files
    second = _harness(files, cache_ram_bytes=50 << 10)
    request = second.ask(1, _SYSTEM, 5)
    assert not second.tier.waiting
    second.settle()
    assert request.cached == 0
    assert second.text(1) == first.text(1)


def test_a_conversation_is_not_written_again_with_each_turn() -> None:
    """A file has at least an eighth of new tokens, and a conversation has at most two files."""
    files: Files = {}
    harness = _harness(files, cache_ram_bytes=4 << 20)
    written: list[int] = []
    text = _SYSTEM
    for turn in range(30):
        request = harness.ask(turn, text, 8)
        before = set(files)
        harness.settle()
        written += sorted(entry.end for entry in files if entry not in before)
        assert len(files) <= 2
        assert request.computed - written[-1] <= max(request.computed // 8, 32), "after a crash this is computed"
        text += harness.text(turn) + " and then?"
    assert all(later - earlier >= later // 8 for earlier, later in pairwise(written))
    _stop(harness)
    assert len(files) <= 2
    assert max(entry.end for entry in files) > request.computed - 32


def test_a_beginning_that_others_have_is_not_replaced() -> None:
    files: Files = {}
    harness = _harness(files, cache_ram_bytes=4 << 20)
    for id in range(6):
        harness.ask(id, _SYSTEM + "xyz"[id % 3] * 90 * (1 + id // 3), 2)
        _stop(harness)
    starts = sorted(entry.end for entry in files)
    later = _harness(files, cache_ram_bytes=4 << 20)
    assert later.ask(1, _SYSTEM + "w" * 50, 2).cached == 0
    later.settle()
    assert starts[0] == len(_SYSTEM) + 1, "with the first token"
    assert later.tier.counts.tokens == starts[0]


def test_a_file_that_is_being_read_is_not_removed() -> None:
    files: Files = {}
    for count in (1, 2):
        harness = _harness(files)
        harness.ask(1, _SYSTEM * count, 2)
        _stop(harness)
    old = min(files, key=len)
    for is_read in (True, False):
        harness = _harness(own := dict(files))
        harness.ask(1, _SYSTEM * 3, 2)
        harness.run_some()
        harness.read_one()
        harness.run_some()
        assert harness.writes, "a third file, which replaces the first one"
        if is_read:
            request = harness.ask(2, _SYSTEM + "another question", 2)
            harness.run_some()
            assert harness.reads
        harness.write_one()
        assert (old in own) == is_read
        harness.settle()
        assert harness.tier.counts.failed_reads == 0
    assert request.from_disk == old.end


@example(False, [150] * 16)
@example(True, [150] * 16)
@given(st.booleans(), st.lists(st.integers(40, 200), min_size=12, max_size=16))
def test_states_that_are_evicted_before_they_are_written_reach_the_disk(unified: bool, sizes: list[int]) -> None:
    files: Files = {}
    harness = _harness(files, kv_unified=unified, cache_ram_bytes=_LARGE, parallel=2)
    harness.is_busy = True
    prompts = [chr(ord("a") + number) * size for number, size in enumerate(sizes)]
    for id, prompt in enumerate(prompts):
        harness.ask(id, prompt, 2)
        harness.run_some()
        while harness.writes:
            harness.write_one()
            harness.run_some()
    if sizes == [150] * 16:
        assert len(files) > 4
        assert harness.tier.counts.lost == 0
    missing = 0
    later = _harness(dict(files), kv_unified=unified, cache_ram_bytes=_LARGE, parallel=2)
    for id, prompt in enumerate(prompts):
        tokens = harness.engine.vocab.tokenize(prompt, add_special=True, parse_special=True)
        known = harness.scheduler.cache.lookup("", tokens, len(tokens) - 1)
        request = later.ask(id, prompt, 2)
        later.settle()
        assert later.text(id) == answer_alone(prompt, 2, 1024)[0]
        missing += max(known, request.from_disk) < len(tokens) - 1 - 32
    assert missing <= harness.tier.counts.lost, "others are in memory or on disk"


def test_evicted_states_that_find_no_room_to_wait_are_counted() -> None:
    harness = _harness({}, cache_ram_bytes=500 << 10)
    for id, letter in enumerate("abcdefghij"):
        harness.ask(id, letter * 150, 2)
        harness.run_some()  # and no write ends
        cache = harness.scheduler.cache
        assert cache.stored_bytes <= 500 << 10
    assert harness.tier.in_flight > 0
    assert harness.tier.counts.lost > 0
    harness.settle()
    assert harness.tier.in_flight == 0


def test_what_is_evicted_before_a_clear_is_not_written() -> None:
    files: Files = {}
    harness = _harness(files)
    harness.is_busy = True
    harness.ask(1, _SYSTEM, 2)
    harness.run_some()
    harness.scheduler.cache.resize(0)
    assert harness.scheduler.cache.has_operations
    harness.clear()
    harness.settle()
    assert files == {}


def test_what_a_full_disk_refuses_is_written_when_it_has_room() -> None:
    files: Files = {}
    harness = _harness(files)
    request = harness.ask(1, _SYSTEM, 2)
    harness.run_some()
    harness.write_one(refused=True)
    harness.settle()
    assert files == {}, "it is not tried again at once"
    harness.now = RETRY_AFTER
    harness.settle()
    assert [entry.end for entry in files] == [request.prompt_size - 1]


def test_after_a_clear_nothing_is_found_and_nothing_is_written() -> None:
    files: Files = {}
    harness = _harness(files)
    harness.ask(1, _SYSTEM, 2)
    harness.settle()
    harness.ask(2, "b" * 300, 2)
    harness.run_some()
    assert harness.writes
    harness.clear()
    _stop(harness)
    assert files == {}
    assert harness.tier.counts.lost == 0
    assert harness.ask(3, _SYSTEM, 2).cached == 0
    harness.settle()
    assert files


class ThreeTiersOfStates(ThreeTiers):
    """The same with checkpoints: files have whole states."""

    memory = CUT

    @rule()
    def flush(self) -> None:
        self.harness.tier.begin_flush()

    def longest(self, tokens: list[int]) -> int:
        limit = tokens[:-1]
        return max(
            (
                entry.end
                for entry in self.files
                if entry.namespace == "" and common_prefix(entry.tokens, limit) == entry.end
            ),
            default=0,
        )


TestThreeTiersOfStates = ThreeTiersOfStates.TestCase
TestThreeTiersOfStates.settings = examples(100)
