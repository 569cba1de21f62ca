"""Three tiers: cells, host memory and files. The fake engine reads its cells, so a wrong byte is a wrong answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from paddock.disk_cache import RETRY_AFTER
from paddock.scheduling import Request
from tests.scheduling.disk import DiskHarness, Files, longest_on_disk, size_of
from tests.scheduling.harness import answer_alone
from tests.tiers import examples

_LEAST_GAIN, _LEAST_FILE = 32, 16
_BLOCKS = ("a" * 70, "b" * 130, "ab" * 45, "c" * 20)
Prompts = st.lists(st.sampled_from(_BLOCKS), min_size=1, max_size=4).map("".join)


def _ask(harness: DiskHarness, id: int, text: str, **fields: object) -> Request:
    request = harness.ask(id, text, 4, **fields)
    harness.settle()
    return request


@pytest.mark.parametrize("unified", [True, False])
def test_a_prefix_survives_the_process(unified: bool) -> None:
    files: Files = {}
    first = _ask(DiskHarness(files, kv_unified=unified), 1, "a" * 300)
    assert first.cached == first.from_disk == 0
    assert files
    later = DiskHarness(files, kv_unified=unified)
    again = _ask(later, 1, "a" * 300)
    assert (again.cached, again.from_disk) == (300, 300)
    assert later.text(1) == answer_alone("a" * 300, 4)[0]
    assert later.tier.counts.tokens == 300


def test_a_request_waits_for_its_read_and_others_do_not() -> None:
    files: Files = {}
    _ask(DiskHarness(files), 1, "a" * 300)
    harness = DiskHarness(files)
    slow = harness.ask(1, "a" * 300, 4)
    quick = harness.ask(2, "b" * 100, 4)
    harness.run_some()
    assert (2, 0) in harness.finished and quick.cached == 0
    assert (1, 0) not in harness.finished
    assert (harness.scheduler.queued, list(harness.tier.waiting)) == (1, [slow])
    harness.read_one()
    harness.settle()
    assert slow.from_disk == 299, "the first token, which both share, was in cells"


def test_a_request_that_waits_can_be_removed() -> None:
    files: Files = {}
    _ask(DiskHarness(files), 1, "a" * 300)
    harness = DiskHarness(files)
    harness.ask(1, "a" * 300, 4)
    harness.run_some()
    harness.scheduler.remove(1)
    assert harness.scheduler.queued == 0
    harness.read_one()
    harness.settle()
    assert not harness.finished
    assert harness.scheduler.cache.stored == 300, "what was read is kept"


def test_requests_for_one_prefix_share_one_read() -> None:
    files: Files = {}
    _ask(DiskHarness(files), 1, "a" * 300)
    harness = DiskHarness(files)
    requests = [harness.ask(id, "a" * 300, 4) for id in range(3)]
    harness.run_some()
    assert len(harness.reads) == 1
    harness.read_one()
    harness.run_some()
    assert not harness.reads
    assert [request.from_disk for request in requests] == [300, 0, 0]
    assert all(request.cached == 300 for request in requests)


@pytest.mark.parametrize("unified", [True, False])
def test_later_files_of_another_process_are_found(unified: bool) -> None:
    files: Files = {}
    harness = DiskHarness(files, kv_unified=unified)
    _ask(DiskHarness(files, kv_unified=unified), 1, "a" * 300)
    harness.look(files)
    assert _ask(harness, 1, "a" * 300).from_disk == 300
    removed = list(files)
    files.clear()
    harness.look(gone=removed)
    assert harness.tier.files == harness.tier.bytes == 0


@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_file_means_only_that_less_is_cached(number: int) -> None:
    files: Files = {}
    _ask(DiskHarness(files), 1, "a" * 400)
    harness = DiskHarness(files)
    request = harness.ask(1, "a" * 400, 4)
    harness.run_some()
    harness.read_one(damaged=[number])
    harness.settle()
    assert request.from_disk == (0, 256)[number]
    assert harness.text(1) == answer_alone("a" * 400, 4)[0]
    assert harness.tier.counts.failed_reads == 1


def test_tenants_and_kinds_of_requests_do_not_share() -> None:
    files: Files = {}
    _ask(DiskHarness(files, kv_unified=False), 1, "a" * 300, namespace="one")
    for fields in ({"namespace": "two"}, {"namespace": "one", "deterministic": True}, {"namespace": None}):
        later = DiskHarness(dict(files), kv_unified=False)
        assert _ask(later, 1, "a" * 300, **fields).from_disk == 0
    for request in ({"namespace": None}, {"namespace": "one", "adapters": ((0, 1.0),)}):
        later = DiskHarness(dict(files), kv_unified=False)
        assert _ask(later, 1, "a" * 300, **request).from_disk == 0


def test_a_request_that_caches_nothing_writes_nothing() -> None:
    files: Files = {}
    _ask(DiskHarness(files), 1, "a" * 300, namespace=None)
    assert files == {}


def test_few_new_tokens_are_written_with_the_next_ones() -> None:
    files: Files = {}
    harness = DiskHarness(files)
    _ask(harness, 1, "a" * 100)
    assert len(files) == 1
    _ask(harness, 2, "a" * 100 + "b" * 10)
    assert len(files) == 1
    _ask(harness, 3, "a" * 100 + "b" * 100)
    assert (
        longest_on_disk(
            files, "", harness.engine.vocab.tokenize("a" * 100 + "b" * 100, add_special=True, parse_special=True)
        )
        >= 200
    )


def test_an_evicted_span_is_written_or_lost() -> None:
    harness = DiskHarness({}, cache_ram_bytes=240 * 1024, n_ctx=400)
    cache, counts = harness.tier._cache, harness.tier.counts
    most = 0
    for id, letter in enumerate("abcdef"):
        harness.ask(id, letter * 190, 1)
        harness.run_some()  # and no write ends
        most = max(most, cache.aside)
        assert cache.stored_bytes <= 240 * 1024
    assert 0 < most <= 30 * 1024, "an eighth of host memory is for evicted spans"
    assert counts.lost > 0
    assert harness.tier.in_flight > 0
    harness.settle()
    assert cache.aside == 0
    assert harness.tier.in_flight == 0
    assert (
        longest_on_disk(
            harness.files, "", harness.engine.vocab.tokenize("a" * 190, add_special=True, parse_special=True)
        )
        >= 190
    )


def test_after_failed_writes_the_answers_are_right_and_less_is_on_disk() -> None:
    files: Files = {}
    harness = DiskHarness(files)
    harness.ask(1, "a" * 300, 4)
    harness.run_some()
    while harness.writes:
        harness.write_one(fails=True)
    assert files == {}
    assert harness.tier.files == 0
    assert harness.tier.counts.failed_writes > 0
    assert _ask(harness, 2, "a" * 300).cached == 300


def test_what_a_full_disk_refuses_is_written_when_it_has_room() -> None:
    files: Files = {}
    harness = DiskHarness(files)
    harness.ask(1, "a" * 300, 4)
    harness.run_some()
    while harness.writes:
        harness.write_one(refused=True)
        harness.run_some()
    assert files == {}, "and it is not tried again at once"
    harness.now = RETRY_AFTER - 1
    _ask(harness, 2, "b" * 100)
    assert files == {}
    harness.now = RETRY_AFTER
    harness.settle()
    assert harness.tier.in_flight == 0
    later = DiskHarness(files)
    assert _ask(later, 1, "a" * 300).from_disk == 300
    assert _ask(later, 2, "b" * 100).from_disk >= 99


def test_what_a_full_disk_refuses_is_lost_when_it_leaves_host_memory() -> None:
    harness = DiskHarness({})
    harness.ask(1, "a" * 300, 4)
    harness.run_some()
    harness.write_one(refused=True)
    harness.scheduler.cache.resize(0)
    harness.run_some()
    assert not harness.writes
    harness.now = RETRY_AFTER
    harness.settle()
    assert harness.files == {}
    assert len(harness.tier._cache.unwritten) == 0
    assert harness.scheduler.cache.stored_bytes == 0


@pytest.mark.parametrize("tenant", [None, "one"])
def test_after_a_clear_nothing_is_found_and_nothing_is_written(tenant: str | None) -> None:
    files: Files = {}
    harness = DiskHarness(files)
    _ask(harness, 1, "a" * 300, namespace="one")
    _ask(harness, 2, "a" * 300, namespace="two")
    harness.ask(3, "b" * 300, 4, namespace="one")
    harness.run_some()
    assert harness.writes
    harness.clear(tenant)
    harness.settle()
    left = {entry.namespace for entry in files}
    assert left == {entry.namespace for entry in harness.tier.entries()} == (set() if tenant is None else {"two"})
    assert harness.tier._cache.aside == 0
    assert [one.host for one in harness.scheduler.cache.contents() if one.tenant == "one"] in ([], [0])
    assert _ask(harness, 4, "b" * 300, namespace="one").cached == 0
    assert longest_on_disk(files, "one", harness.engine.vocab.tokenize("b" * 300, add_special=True, parse_special=True))
    assert harness.tier.counts.failed_reads == 0


def test_what_is_read_during_a_clear_is_not_used() -> None:
    files: Files = {}
    _ask(DiskHarness(files), 1, "a" * 300)
    harness = DiskHarness(files)
    request = harness.ask(1, "a" * 300, 4)
    harness.run_some()
    states = dict(files)
    harness.clear()
    files.update(states)  # the reader has mapped the files
    harness.read_one()
    assert harness.scheduler.cache.stored_bytes == 0
    files.clear()
    harness.settle()
    assert (request.cached, request.from_disk) == (0, 0)
    assert harness.text(1) == answer_alone("a" * 300, 4)[0]


def test_a_clear_before_the_files_are_listed() -> None:
    files: Files = {}
    _ask(DiskHarness(files), 1, "a" * 300)
    harness = DiskHarness({})
    harness.tier._index = None
    harness.clear()
    harness.tier.listed(files)
    assert harness.tier.files == 0


def test_nothing_is_written_where_computing_is_faster_than_reading() -> None:
    files: Files = {}
    harness = DiskHarness(files)
    prices = harness.scheduler.prices
    for _ in range(8):
        prices.prefill.observe(1000, 0.001)
        prices.restore.observe(1 << 20, 0.01)
        prices.disk_read.observe(1 << 20, 1.0)
    assert not harness.tier.pays
    _ask(harness, 1, "a" * 300)
    assert files == {}


class ThreeTiers(RuleBasedStateMachine):
    """Any sequence of requests, reads, writes, failures and crashes. What is really held must be what is counted, and
    every answer must be that of a model without a cache.
    """

    requests = Bundle("requests")
    memory: object = False
    """The kind of memory, as `Harness` takes it."""

    @initialize(unified=st.booleans(), buffer=st.booleans(), ram=st.integers(64, 900))
    def start(self, unified: bool, buffer: bool, ram: int) -> None:
        self.options: dict[str, Any] = {
            "kv_unified": unified,
            "buffer": buffer,
            "cache_ram_bytes": ram << 10,
            "n_ctx": 700,
            "parallel": 2,
        }
        self.options["whole"] = self.memory
        self.ram, self.was_resized = ram << 10, False
        self.files: Files = {}
        self.has_others = False
        """Other processes have written files that this one does not know."""
        self.has_lost = False
        """Files are gone, and this process does not know it."""
        self.ids = 0
        self.asked: dict[int, str] = {}
        self.harness = DiskHarness(self.files, **self.options)

    @rule(text=Prompts, tenant=st.sampled_from(["", "other"]))
    def ask(self, text: str, tenant: str) -> None:
        self.ids += 1
        self.asked[self.ids] = text
        self.harness.ask(self.ids, text, 3, namespace=tenant)

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.harness.step()

    @rule()
    def run_until_disk(self) -> None:
        self.harness.run_some()

    @precondition(lambda self: self.harness.reads)
    @rule(damaged=st.lists(st.integers(0, 3), max_size=2))
    def read(self, damaged: list[int]) -> None:
        self.harness.read_one(damaged=damaged)

    @precondition(lambda self: self.harness.writes)
    @rule(fails=st.booleans(), refused=st.booleans())
    def write(self, fails: bool, refused: bool) -> None:
        self.harness.write_one(fails=fails, refused=refused)

    @rule(is_busy=st.booleans())
    def load(self, is_busy: bool) -> None:
        self.harness.is_busy = is_busy

    @rule()
    def wait(self) -> None:
        self.harness.now += RETRY_AFTER

    @precondition(lambda self: self.files)
    @rule(number=st.integers(0, 100))
    def lose_file(self, number: int) -> None:
        """Another process evicts it, or it is damaged."""
        del self.files[list(self.files)[number % len(self.files)]]
        self.has_lost = True

    @rule(text=Prompts)
    def another_process(self, text: str) -> None:
        """It serves the same model, with the same files."""
        other = DiskHarness(self.files, **self.options)
        _ask(other, 1, text)
        assert other.text(1) == answer_alone(text, 4, n_ctx=700)[0]
        self.has_others = True

    @rule()
    def look(self) -> None:
        """What other processes wrote and removed is found."""
        known = {replace(entry, size=0) for entry in self.harness.tier.entries() if entry.size}
        self.harness.look(self.files.keys() - known, known - self.files.keys())
        known = {replace(entry, size=0) for entry in self.harness.tier.entries()}
        assert known >= self.files.keys()
        self.has_others = self.has_lost = False

    @rule(tenant=st.sampled_from([None, "", "other"]))
    def clear(self, tenant: str | None) -> None:
        self.harness.clear(tenant)

    @rule(ram=st.integers(0, 900))
    def resize(self, ram: int) -> None:
        self.ram = ram << 10
        self.was_resized = True  # what is being read or written cannot shrink
        self.harness.scheduler.cache.resize(self.ram)

    @rule()
    def remove(self) -> None:
        if self.asked:
            id = max(self.asked)
            if (id, 0) not in self.harness.finished:
                del self.asked[id]
                self.harness.scheduler.remove(id)

    @rule()
    def crash(self) -> None:
        """Only the files are left."""
        self.asked = {}
        self.ram, self.was_resized = self.options["cache_ram_bytes"], False
        self.has_others = self.has_lost = False
        self.harness = DiskHarness(self.files, **self.options)

    @rule(text=Prompts)
    def find(self, text: str) -> None:
        """A fresh process finds exactly what the files have."""
        later = DiskHarness(dict(self.files), n_ctx=700, whole=self.memory)
        tokens = later.engine.vocab.tokenize(text, add_special=True, parse_special=True)
        expected = self.longest(tokens)
        request = _ask(later, 1, text)
        assert request.cached == request.from_disk == (expected if expected >= _LEAST_GAIN else 0)
        assert later.text(1) == answer_alone(text, 4, n_ctx=700)[0]

    def longest(self, tokens: list[int]) -> int:
        """How many tokens of a prompt the files have."""
        return min(longest_on_disk(self.files, "", tokens), len(tokens) - 1)

    @invariant()
    def accounts_agree(self) -> None:
        harness = self.harness
        cache, engine, tier = harness.scheduler.cache, harness.engine, harness.tier
        cache.check_integrity()
        if not cache.has_operations:
            assert cache.used == engine.used_cells
            assert cache.stored == engine.stored_tokens
            assert cache.stored_bytes == harness.held_bytes
        if cache.stored_bytes <= self.ram or not (harness.reads or harness.writes or harness.adopted):
            self.was_resized = False
        assert cache.stored_bytes <= self.ram or self.was_resized
        writes = [write for batch in harness.writes for write, _ in batch]
        assert tier.in_flight == sum(harness.state_size(len(write.entry)) for write in writes)
        ordered = [write.entry for write in writes if not write.is_cancelled]
        known = {replace(entry, size=0) for entry in tier.entries()}
        assert known >= set(ordered) or not ordered
        unknown = {entry for entry in self.files if entry not in known}
        assert not unknown or self.has_others or harness.tier.counts.failed_reads, (
            "files are forgotten only after a failed read"
        )

        sizes = {replace(entry, size=0): entry.size for entry in tier.entries() if entry.size}
        assert tier.bytes == sum(sizes.values())
        assert all(size == size_of(self.files[entry]) for entry, size in sizes.items() if entry in self.files)
        assert sizes.keys() <= self.files.keys() or self.has_others or self.has_lost
        assert tier.files == len(known) >= len(sizes)

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        self.harness.settle()
        self.accounts_agree()
        for id, text in self.asked.items():
            assert self.harness.text(id) == answer_alone(text, 3, n_ctx=700)[0]


TestThreeTiers = ThreeTiers.TestCase
TestThreeTiers.settings = examples(100)


@given(st.lists(Prompts, min_size=1, max_size=6))
def test_all_prompts_are_found_after_a_restart(texts: list[str]) -> None:
    files: Files = {}
    harness = DiskHarness(files, cache_ram_bytes=8 << 20, n_ctx=4096)
    for id, text in enumerate(texts):
        _ask(harness, id, text)
    later = DiskHarness(files, cache_ram_bytes=8 << 20, n_ctx=4096)
    for id, text in enumerate(texts):
        request = _ask(later, id, text)
        # The last tokens are not written if they are few, and so many of the rest are not worth a read.
        assert request.cached > len(text) - _LEAST_GAIN - _LEAST_FILE
        assert later.text(id) == answer_alone(text, 4, n_ctx=4096)[0]
