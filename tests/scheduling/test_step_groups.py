"""Requests that cannot share a step: their groups, no starvation, and no shared prefixes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling import Request, Scheduler, StepBudget
from paddock.scheduling.prefix_cache import PrefixCache
from paddock.scheduling.snapshot_cache import SnapshotCache
from paddock.scheduling.step_groups import StepGroups
from paddock.types import Adapters
from tests.scheduling.harness import Harness, Sets, Texts

PLACES = 6
TOGETHER = 2
ONE: Adapters = ((0, 1.0),)


def _request(id: int, adapters: Adapters, *, deterministic: bool, generating: bool) -> Request:
    request = Request(id, [1], None, 100, adapters=adapters, deterministic=deterministic)
    request.sequence = id % PLACES
    if generating:
        request.tokens.append(2)
        request.computed = 1
    return request


Kinds = st.tuples(Sets, st.booleans(), st.booleans())


@given(
    st.lists(st.tuples(st.lists(Kinds, max_size=3), st.integers(0, PLACES)), min_size=1, max_size=40), st.integers(1, 5)
)
def test_a_group_has_one_kind_and_no_request_starves(
    coming: list[tuple[list[tuple[Adapters, bool, bool]], int]], turn: int
) -> None:
    """A request runs at the latest after a turn of all other ready requests, whatever arrives and ends meanwhile."""
    lanes = StepGroups(TOGETHER, turn)
    running: list[Request] = []
    waited: dict[Request, int] = {}
    id = 0
    for arrivals, leaving in coming:
        for adapters, deterministic, generating in arrivals[: PLACES - len(running)]:
            request = _request(id, adapters, deterministic=deterministic, generating=generating)
            lanes.enter(request)
            running.append(request)
            waited[request] = 0
            id += 1
        lane = lanes.next(running)
        assert bool(lane) == bool(running)
        assert len({(request.adapters, request.deterministic) for request in lane}) <= 1
        if lane and lane[0].deterministic and len(lane) > 1:
            assert len(lane) <= TOGETHER
            assert all(request.is_generating for request in lane)
        for request in running:
            waited[request] = 0 if request in lane else waited[request] + 1
            assert waited[request] < PLACES * turn
        del running[leaving:]


def _turns(groups: StepGroups, running: list[Request], steps: int, seconds: float) -> str:
    """Which set of adapters has each step."""
    taken = ""
    for _ in range(steps):
        taken += "-" if not groups.next(running)[0].adapters else "1"
        groups.spent(seconds)
    return taken


@pytest.mark.parametrize(("seconds", "turns"), [(0.001, "--------11111111----"), (0.02, "---111---111"), (0.5, "-1-1")])
def test_adapters_take_turns_of_some_steps_and_a_limited_time(seconds: float, turns: str) -> None:
    """Each change needs new compute graphs."""
    running = [_request(id, adapters, deterministic=False, generating=True) for id, adapters in enumerate([(), ONE])]
    assert _turns(StepGroups(1), running, len(turns), seconds) == turns


def test_a_set_that_ran_alone_gives_its_turn_to_the_next() -> None:
    groups = StepGroups(1)
    first = _request(0, (), deterministic=False, generating=True)
    groups.enter(first)
    assert _turns(groups, [first], 3, 0.001) == "---"
    second = _request(1, ONE, deterministic=False, generating=False)
    groups.enter(second)
    assert _turns(groups, [first, second], 1, 0.001) == "1"
    assert _turns(groups, [first], 1, 0.001) == "-", "the other one has ended"


@given(st.lists(st.booleans(), min_size=1, max_size=PLACES), Sets)
def test_requests_with_the_same_adapters_form_one_group(generating: list[bool], adapters: Adapters) -> None:
    running = [
        _request(id, adapters, deterministic=False, generating=generates) for id, generates in enumerate(generating)
    ]
    lanes = StepGroups(TOGETHER)
    assert all(lanes.next(running) is running for _ in range(3))


@given(
    st.lists(st.tuples(Texts, Sets, st.booleans()), min_size=1, max_size=8),
    st.sampled_from([160, 512]),
    st.booleans(),
    st.booleans(),
)
def test_every_request_gets_the_answer_of_its_own_adapters(
    asked: list[tuple[str, Adapters, bool]], n_ctx: int, unified: bool, whole: bool
) -> None:
    """The fake engine refuses to continue a sequence, or a copy of it, with other adapters."""
    harness = Harness(n_ctx=n_ctx, kv_unified=unified, whole=whole)
    for id, (text, adapters, deterministic) in enumerate(asked):
        harness.ask(id, text, adapters=adapters, deterministic=deterministic)
    while (plan := harness.step()) is not None:
        assert {request.adapters for request in plan.requests} <= {plan.adapters}
    harness.run()
    for id, (text, adapters, deterministic) in enumerate(asked):
        alone = Harness(n_ctx=n_ctx)
        alone.ask(1, text, adapters=adapters, deterministic=deterministic)
        alone.run()
        assert (harness.text(id), harness.finished[id, 0]) == (alone.text(1), alone.finished[1, 0])


@given(st.permutations([("a" * 60, ONE, 5), ("c", (), 90), ("d" * 8, ((1, 1.0),), 90)]), st.integers(1, 5))
def test_cells_run_out_between_groups(asked: list[tuple[str, Adapters, int]], batch: int) -> None:
    harness = Harness(n_ctx=100, batch=batch)
    for id, (text, adapters, max_tokens) in enumerate(asked):
        harness.ask(id, text, max_tokens, adapters=adapters)
    harness.run()
    for id, (text, adapters, max_tokens) in enumerate(asked):
        alone = Harness(n_ctx=100)
        alone.ask(1, text, max_tokens, adapters=adapters)
        alone.run()
        assert (harness.text(id), harness.finished[id, 0]) == (alone.text(1), alone.finished[1, 0])


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_long_prompt_under_other_adapters_does_not_block_generation(deterministic: bool) -> None:
    harness = Harness(n_ctx=2048, kv_unified=False)
    harness.scheduler = Scheduler(
        shape=harness.engine.shape,
        n_ctx=2048,
        slots=4,
        n_batch=1024,
        end_tokens=harness.engine.vocab.end_tokens,
        budget=StepBudget(floor_seconds=0, stretch=1),
    )
    answer = harness.ask(1, "a", max_tokens=30, deterministic=deterministic)
    while not answer.is_generating:
        harness.step()
    harness.ask(2, "b" * 1500, max_tokens=1, adapters=ONE)
    sizes = []
    while (plan := harness.step()) is not None:
        sizes.append((bool(harness.finished), sum(count for _, count in plan.chunks)))
    assert 0 < max(size for over, size in sizes if not over) < 100
    assert max(size for over, size in sizes if over) >= 512


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("whole", [False, True])
def test_a_prefix_is_shared_under_the_same_adapters_only(unified: bool, whole: bool) -> None:
    harness = Harness(kv_unified=unified, whole=whole)
    sets: list[Adapters] = [(), ONE, ((0, 0.5),), ((1, 1.0),)]
    cold = [harness.ask(id, "a" * 60, max_tokens=4, adapters=adapters) for id, adapters in enumerate(sets)]
    harness.run()
    assert [request.cached for request in cold] == [0] * len(sets)
    warm = [harness.ask(9 + id, "a" * 60, max_tokens=4, adapters=adapters) for id, adapters in enumerate(sets)]
    harness.run()
    assert [request.cached for request in warm] == [60] * len(sets)
    twins = [
        harness.ask(20 + id, "b" * 60, max_tokens=4, adapters=adapters) for id, adapters in enumerate([ONE, (), ONE])
    ]
    harness.run()
    assert [request.cached > 1 for request in twins] == [False, False, True], (
        "asked at once, too; all begin with the same token"
    )


@pytest.mark.parametrize("whole", [False, True])
def test_unused_adapter_namespaces_are_removed(whole: bool) -> None:
    """A client that sends another scale each time fills only memory that is limited."""
    harness = Harness(whole=whole, cache_ram_bytes=200 * 1024)
    for id in range(200):
        harness.ask(id, "a" * 40, max_tokens=2, adapters=((0, 1 + id / 1000),))
        harness.run()
    cache = harness.scheduler.cache
    assert isinstance(cache, PrefixCache | SnapshotCache)
    in_host_memory, in_cells = 5, len(cache.resident)
    assert 0 < len(cache._tree._roots) <= in_host_memory + in_cells


def test_a_saved_slot_keeps_its_adapters() -> None:
    first = Harness()
    first.ask(1, "a" * 40, wanted_slot=0, adapters=ONE)
    first.run()
    prefix, packed = first.save(0)
    assert prefix.adapters == ONE
    second = Harness()
    assert second.restore(2, prefix, packed) == len(prefix.tokens)
    without, under = second.ask(1, "a" * 40), second.ask(2, "a" * 40, adapters=ONE)
    second.run()
    assert (without.cached, under.cached) == (0, 40)
    assert second.text(2) == first.text(1) != second.text(1)
