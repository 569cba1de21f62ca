"""Where the cached tokens of a prompt were, and the nearest cached prefix when it started."""

from __future__ import annotations

import pytest

from paddock.types import ReusedTokens
from tests.scheduling.harness import Harness


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("unified", [True, False])
def test_tokens_from_host_memory_are_told_from_those_in_cells(unified: bool, whole: bool) -> None:
    harness = Harness(kv_unified=unified, whole=whole)
    assert harness.ask(1, "a" * 100, max_tokens=1).reused == ReusedTokens()
    harness.run()
    if whole:  # a model with whole states has them in host memory only
        expected = ReusedTokens(host=100)
    else:
        again = harness.ask(2, "a" * 100, max_tokens=1)
        harness.run()
        assert again.reused == ReusedTokens(cells=100)
        for sequence in list(harness.scheduler.cache.resident):
            harness.scheduler.cache.reclaim(sequence)
        expected = ReusedTokens(host=100)
    restored = harness.ask(3, "a" * 100, max_tokens=1)
    harness.run()
    assert restored.reused == expected


def test_a_request_knows_where_it_differs_from_the_nearest_prefix() -> None:
    harness = Harness()
    harness.ask(1, "the gate is open", max_tokens=1)
    harness.run()
    changed = harness.ask(2, "the gate is wide", max_tokens=1)
    harness.run()
    size = len(harness.engine.vocab.tokenize("the gate is ", add_special=True, parse_special=True))
    assert changed.nearest.length == size
    assert bytes(changed.nearest.following).startswith(b"open")
    other = harness.ask(3, "the gate is wide", max_tokens=1, namespace="other")
    harness.run()
    assert (other.nearest.length, other.nearest.following) == (0, [])


def test_a_preempted_request_does_not_find_itself() -> None:
    harness = Harness(batch=16)
    request = harness.ask(1, "a" * 60, max_tokens=4)
    for _ in range(3):
        harness.step()
    assert request.computed
    harness.scheduler._admission.preempt(request)
    harness.run()
    assert request.preempted and (request.nearest.length, request.cached) == (0, 0)
