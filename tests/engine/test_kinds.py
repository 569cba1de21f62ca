"""Concurrent requests on tiny models of every kind of memory: no wrong text and no abort."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.types import Constraint
from tests.engine.harness import Harness
from tests.tiers import examples, full

KINDS = ["llama", "latent", "positions", "sliding_window", "recurrent", "hybrid"]
TEXTS = [" ".join(f"word{(n * k) % 13}" for n in range(20 + 15 * k)) for k in range(1, 5)]


@full
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unified", [True, False])
def test_concurrent_requests_with_cancellation_and_repetition(
    tiny_models: dict[str, Path], kind: str, unified: bool
) -> None:
    harness = Harness(tiny_models[kind], kv_unified=unified, parallel=3)
    for round in range(3):
        for id, text in enumerate(TEXTS):
            harness.ask(id, text, namespace="" if id % 2 else None)
        for _ in range(5):
            harness.step()
        harness.scheduler.remove(round)
        harness.run()
    assert set(harness.finished) == {0, 1, 2, 3}
    assert harness.scheduler.cache.used == harness.scheduler.cache.idle_cells
    harness.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_deterministic_answer_is_the_same_alone_and_among_others(tiny_models: dict[str, Path], kind: str) -> None:
    harness = Harness(tiny_models[kind], kv_unified=False, parallel=3)
    first = [harness.alone(id, text, deterministic=True) for id, text in enumerate(TEXTS)]
    for id, text in enumerate(TEXTS):
        harness.ask(id, text, deterministic=True)
        harness.ask(100 + id, text[::-1])
    harness.run()
    assert [harness.answers[id] for id in range(len(TEXTS))] == first
    harness.close()


@pytest.fixture(
    scope="module",
    params=[(kind, unified) for kind in KINDS for unified in (True, False)],
    ids=[f"{kind}-{layout}" for kind in KINDS for layout in ("unified", "streams")],
)
def shared_harness(request: pytest.FixtureRequest, tiny_models: dict[str, Path]) -> Iterator[Harness]:
    kind, unified = request.param
    # Cells for two long requests at most, and host memory for a few prefixes.
    harness = Harness(tiny_models[kind], kv_unified=unified, n_ctx=1024, cache_ram_bytes=768 * 600, parallel=3)
    yield harness
    harness.close()


_Requests = st.lists(
    st.tuples(
        st.text(st.sampled_from("ab "), min_size=1, max_size=300),
        st.integers(1, 20),
        st.integers(0, 15),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


@examples(25)
@given(requests=_Requests)
def test_arrivals_and_cancellations_change_no_deterministic_answer(
    shared_harness: Harness, requests: list[tuple[str, int, int, bool, bool]]
) -> None:
    """A deterministic request has the same answer alone and among requests that arrive, end and take cells."""
    harness = shared_harness
    harness.answers.clear()
    harness.finished.clear()
    for id, (text, size, steps, cancelled, deterministic) in enumerate(requests):
        harness.ask(id, text, max_tokens=size, temperature=0.9, deterministic=deterministic)
        for _ in range(steps):
            harness.step()
        if cancelled:
            harness.scheduler.remove(id)
    harness.run()
    answers = {id: list(tokens) for id, tokens in harness.answers.items()}
    for id, (text, size, _, cancelled, deterministic) in enumerate(requests):
        if deterministic:
            expected = harness.alone(id, text, max_tokens=size, temperature=0.9, deterministic=True, namespace=None)
            seen = answers.get(id, [])
            assert seen == expected[: len(seen)]
            assert cancelled or len(seen) == size


def test_requests_that_exceed_the_cells_are_preempted_and_finish(tiny_models: dict[str, Path]) -> None:
    harness = Harness(tiny_models["llama"], n_ctx=512, parallel=4)
    for id in range(4):
        harness.ask(id, f"{id} " * 80, max_tokens=120)
    harness.run()
    assert harness.scheduler.preemptions > 0
    assert {id: len(tokens) for id, tokens in harness.answers.items()} == dict.fromkeys(range(4), 120)
    harness.close()


def test_preempted_constrained_requests_continue_in_their_grammar(tiny_models: dict[str, Path]) -> None:
    harness = Harness(tiny_models["llama"], n_ctx=512, parallel=4)
    grammar = harness.engine.grammars.compile(Constraint("regex", "(one|two){40}(and|or){40}", "regex"))
    for id in range(4):
        harness.ask(id, f"{id} " * 80, max_tokens=400, temperature=1.0, grammar=grammar)
    harness.run()
    assert harness.scheduler.preemptions > 0
    assert harness.finished == dict.fromkeys(range(4), "stop")
    for tokens in harness.answers.values():
        assert re.fullmatch(rb"(one|two){40}(and|or){40}", b"".join(map(harness.engine.vocab.piece, tokens)))
    harness.close()
