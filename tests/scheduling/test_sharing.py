"""Several keys on one model: a flooding key delays only itself, and prefixes are shared within a tenant only."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling import Plan, Request, Scheduler, StepBudget
from paddock.types import CacheShape, Sampled
from tests.scheduling.harness import CUT, Harness, Memories, Texts, answer_alone
from tests.tiers import full

Layouts = pytest.mark.parametrize(
    ("unified", "whole"), [(True, False), (False, False), (True, True), (False, True), (True, CUT), (False, CUT)]
)


# ── places ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@Layouts
def test_a_request_of_a_flooding_key_is_preempted_for_another_key(unified: bool, whole: bool | str) -> None:
    harness = Harness(parallel=3, kv_unified=unified, whole=whole)
    flood = [harness.ask(id, f"{id}" * 70, key="flood") for id in range(6)]
    while not harness.answers[2, 0]:
        harness.step()
    other = harness.ask(10, "a question", max_tokens=5, key="other")
    harness.step()
    assert other.slot >= 0
    assert [request.preempted for request in flood] == [0, 0, 1, 0, 0, 0], "the youngest running request"
    harness.run()
    assert next(iter(harness.finished)) == (10, 0)
    for id in range(6):
        assert harness.text(id) == answer_alone(f"{id}" * 70)[0]


def test_a_single_key_is_served_in_order_without_preemption() -> None:
    harness = Harness(parallel=2)
    for id in range(6):
        harness.ask(id, f"{id}" * 20, key="one")
    harness.run()
    assert harness.scheduler.preemptions == 0
    assert [id for id, _ in harness.finished] == sorted(id for id, _ in harness.finished)


@full
@pytest.mark.parametrize("unified", [True, False])
def test_keys_take_turns_in_a_single_slot(unified: bool) -> None:
    harness = Harness(parallel=1, kv_unified=unified, n_ctx=2048)
    harness.ask(1, "<|im_start|>user\nsay: " + "x" * 1000 + "<|im_end|>\n<|im_start|>assistant\n", key="long")
    for _ in range(100):
        harness.step()
    harness.ask(2, "short", key="short")
    harness.run()
    assert [*harness.finished] == [(2, 0), (1, 0)]
    assert harness.text(1) == "x" * 1000


def test_the_flooding_key_is_preempted_when_cells_run_out() -> None:
    harness = Harness(n_ctx=300, parallel=4)
    for id in range(3):
        harness.ask(id, f"{id}" * 66, key="flood")
    other = harness.ask(10, "z" * 66, key="other")
    harness.run()
    assert harness.scheduler.preemptions > 0
    assert other.preempted == 0, "although it was the youngest"


@given(
    st.lists(st.tuples(Texts, st.sampled_from("abc"), st.booleans(), st.integers(0, 9)), min_size=1, max_size=10),
    st.sampled_from([160, 512]),
    st.booleans(),
    st.booleans(),
    Memories,
)
def test_preemption_between_keys_changes_no_answer(
    asked: list[tuple[str, str, bool, int]], n_ctx: int, unified: bool, deterministic: bool, whole: bool | str
) -> None:
    harness = Harness(n_ctx=n_ctx, parallel=2, kv_unified=unified, whole=whole)
    for id, (text, key, batch, pause) in enumerate(asked):
        harness.ask(id, text, key=key, batch=batch, deterministic=deterministic)
        for _ in range(pause):
            harness.step()
    harness.run()
    for id, (text, *_) in enumerate(asked):
        assert (harness.text(id), harness.finished[id, 0]) == answer_alone(text, n_ctx=n_ctx)


def test_batch_requests_are_answered_last() -> None:
    harness = Harness(parallel=2)
    for id in range(3):
        harness.ask(id, f"{id}" * 30, key="night", batch=True)
    for id in range(10, 14):
        harness.ask(id, f"{id}" * 10, key="day")
    harness.run()
    assert [id for id, _ in harness.finished][-3:] == [0, 1, 2]


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Clocked:
    """A scheduler with a simulated clock. Steps take as long as with a small model on two cores."""

    def __init__(self, *, unified: bool) -> None:
        shape = CacheShape(cells=16384, unified=unified, bytes_per_token=1000, ram_bytes=1 << 30)
        self.scheduler = Scheduler(
            shape=shape, n_ctx=16384 if unified else 2048, slots=8, n_batch=2048, end_tokens=frozenset(),
            budget=StepBudget(),
        )  # fmt: skip
        self.now = 0.0
        self.first: dict[Request, float] = {}
        self._random = random.Random(0)
        self._ids = iter(range(1000))

    def ask(
        self, key: str, size: int, max_tokens: int, beginning: Sequence[int] = (), *, batch: bool = False
    ) -> Request:
        tokens = [*beginning, *(self._random.randrange(1 << 20) for _ in range(size - len(beginning)))]
        request = Request(next(self._ids), tokens, object(), max_tokens, key=key, namespace=key, batch=batch)
        self.scheduler.add(request)
        return request

    def run_until(self, moment: float) -> None:
        while self.now < moment:
            plan = self.scheduler.schedule()
            if plan is None:
                self.now = moment
            elif plan.spans:
                seconds = self._seconds(plan)
                self.now += seconds
                results = [Sampled(1) if span.sampler is not None else None for span in plan.spans]
                for progress in self.scheduler.commit(plan, results, seconds):
                    self.first.setdefault(progress.request, self.now)

    @staticmethod
    def _seconds(plan: Plan) -> float:
        tokens = [(span.start, len(span.tokens)) for span in plan.spans if len(span.tokens) > 1]
        answers = len(plan.spans) - len(tokens)
        return 0.006 + 0.0025 * answers + sum(count * (0.002 + 3.3e-6 * start) for start, count in tokens)


def _short_ones(clocked: Clocked, count: int) -> float:
    """The median time to the first token of short requests, one each second or so."""
    times = []
    for number in range(count):
        clocked.run_until(clocked.now + 1)
        came = clocked.now - 0.013 * (number % 5)  # during a step
        request = clocked.ask("short", 24, 8)
        while request not in clocked.first:
            clocked.run_until(clocked.now + 0.001)
        times.append(clocked.first[request] - came)
    return statistics.median(times)


@pytest.mark.parametrize("unified", [True, False])
def test_a_flood_at_most_doubles_another_keys_time_to_first_token(unified: bool) -> None:
    alone = _short_ones(Clocked(unified=unified), 20)
    clocked = Clocked(unified=unified)
    flood = [clocked.ask("flood", 1000, 256) for _ in range(50)]
    assert _short_ones(clocked, 40) <= 2 * alone
    assert sum(request in clocked.first for request in flood) > 4, "the flooding key makes progress too"


# ── prompts ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_short_prompt_of_another_key_is_computed_at_once_and_uncut() -> None:
    clocked = Clocked(unified=True)
    for _ in range(4):
        clocked.ask("flood", 1000, 1)
    clocked.run_until(2.0)
    clocked.ask("other", 40, 1)
    plan = clocked.scheduler.schedule()
    assert plan is not None
    assert [(request.key, len(span.tokens)) for request, span in zip(plan.requests, plan.spans, strict=True)] == [
        ("other", 40)
    ]


@pytest.mark.parametrize("unified", [True, False])
def test_the_only_request_of_a_key_skips_other_keys_decodes(unified: bool) -> None:
    clocked = Clocked(unified=unified)
    beginning = range(16)
    clocked.ask("other", 40, 1, beginning)
    clocked.run_until(1.0)
    for _ in range(20):
        clocked.ask("flood", 100, 400)
    clocked.run_until(4.0)
    request = clocked.ask("other", 40, 4, beginning)
    plan = clocked.scheduler.schedule()
    assert plan is not None
    assert plan.requests == [request] and len(plan.spans[0].tokens) == 24, "the rest was cached"
    clocked.scheduler.commit(plan, [Sampled(1)], 0.05)
    plan = clocked.scheduler.schedule()
    assert plan is not None
    assert plan.decodes == 8, "then all requests continue"


@pytest.mark.parametrize("unified", [True, False])
def test_the_last_slot_is_reserved_for_a_recent_key(unified: bool) -> None:
    clocked = Clocked(unified=unified)
    for _ in range(60):
        clocked.ask("flood", 100, 400)
    clocked.run_until(1.0)
    for _ in range(5):
        clocked.ask("other", 40, 4)
        clocked.run_until(clocked.now + 1)
    assert clocked.scheduler.preemptions == 1, "a request is preempted for the first one only"
    clocked.run_until(clocked.now + 12)
    assert clocked.scheduler.running == 8, "the reservation expires"


@pytest.mark.parametrize("unified", [True, False])
def test_lines_of_a_batch_leave_a_slot_for_questions_of_their_key(unified: bool) -> None:
    """A server without keys: users and batches have the same one, and new lines come all the time."""
    clocked = Clocked(unified=unified)
    for _ in range(16):
        clocked.ask("", 40, 40, batch=True)
    clocked.run_until(1.0)
    for _ in range(5):
        question = clocked.ask("", 40, 4)
        asked = clocked.now
        for _ in range(4):
            clocked.ask("", 40, 40, batch=True)
            clocked.run_until(clocked.now + 0.25)
        assert clocked.first[question] - asked < 0.3
    assert clocked.scheduler.preemptions == 1, "a line is preempted for the first question only"


def test_a_long_prompt_is_not_starved_by_short_ones_of_other_keys() -> None:
    clocked = Clocked(unified=True)
    long = clocked.ask("patient", 600, 1)
    for number in range(400):
        clocked.ask(f"hasty {number % 20}", 40, 1)
        clocked.run_until(clocked.now + 0.05)
    assert long in clocked.first


def test_a_leader_inherits_the_rank_of_its_followers() -> None:
    harness = Harness(batch=16, parallel=4)
    harness.ask(1, "a" * 200, max_tokens=1, key="slow")
    harness.ask(2, "b" * 300, max_tokens=1, key="slow")
    harness.step()
    waiting = harness.ask(3, "b" * 299 + "c", max_tokens=1, key="quick")
    harness.run()
    assert waiting.cached >= 290
    assert [id for id, _ in harness.finished].index(3) < 2


# ── tenants ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@Layouts
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_prefix_is_shared_within_its_tenant_only(unified: bool, whole: bool | str, deterministic: bool) -> None:
    """From cells, from host memory, and from a request that is computing it."""

    def ask(id: int, tenant: str) -> Request:
        return harness.ask(id, "p" * 300, max_tokens=3, namespace=tenant, deterministic=deterministic)

    harness = Harness(kv_unified=unified, whole=whole, n_ctx=2048, cache_ram_bytes=16 << 20)
    requests: dict[str, list[Request]] = {"anna": [], "ben": []}
    for round in range(3):
        for number, tenant in enumerate(["anna", "ben", "anna", "ben"]):
            requests[tenant].append(ask(10 * round + number, tenant))
        if round:
            harness.run()
        else:
            harness.step()
    for own in requests.values():
        assert own[0].cached == 0
        assert all(request.cached >= 256 for request in own[1:])


@given(Texts, st.booleans())
def test_a_saved_slot_is_shared_within_its_tenant_only(text: str, unified: bool) -> None:
    first, second = Harness(kv_unified=unified), Harness(kv_unified=unified)
    first.ask(1, text, max_tokens=1, wanted_slot=0, namespace="anna")
    first.run()
    second.restore(0, *first.save(0))
    theirs = second.ask(1, text, max_tokens=1, wanted_slot=0, namespace="ben")
    second.run()
    assert second.save(0)[0].namespace == "ben"
    own = second.ask(2, text, max_tokens=1, namespace="anna")
    second.run()
    assert (theirs.cached, own.cached) == (0, own.prompt_size - 1)


@pytest.mark.parametrize("unified", [True, False])
def test_prefill_time_reveals_nothing_of_another_tenant(unified: bool) -> None:
    """A prefix that two tenants have in common is computed for each, so that timing reveals nothing."""
    harness = Harness(kv_unified=unified)
    computed: list[Any] = []
    for tenant in ("anna", "ben"):
        before = harness.computed
        harness.ask(1, "p" * 200, max_tokens=1, namespace=tenant)
        harness.run()
        computed.append(harness.computed - before)
    assert computed[0] == computed[1] == 201
