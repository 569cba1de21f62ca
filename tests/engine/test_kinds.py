"""Every kind of memory, with real (if tiny) models: no wrong text, no abort, whatever else is running."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddock.types import Constraint
from tests.engine.house import House

KINDS = ["llama", "sliding_window", "recurrent", "hybrid"]
TEXTS = [" ".join(f"word{(n * k) % 13}" for n in range(20 + 15 * k)) for k in range(1, 5)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unified", [True, False])
def test_requests_of_every_kind_run_together_cancel_and_come_again(
    tiny_models: dict[str, Path], kind: str, unified: bool
) -> None:
    house = House(tiny_models[kind], kv_unified=unified, parallel=3)
    for round in range(3):
        for id, text in enumerate(TEXTS):
            house.ask(id, text, namespace="" if id % 2 else None)
        for _ in range(5):
            house.step()
        house.scheduler.remove(round)
        house.run()
    assert set(house.finished) == {0, 1, 2, 3}
    assert house.scheduler.cache.running == 0
    house.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_deterministic_answer_is_the_same_among_others_and_again(tiny_models: dict[str, Path], kind: str) -> None:
    house = House(tiny_models[kind], kv_unified=False, parallel=3)
    first = [house.alone(id, text, deterministic=True) for id, text in enumerate(TEXTS)]
    for id, text in enumerate(TEXTS):
        house.ask(id, text, deterministic=True)
        house.ask(100 + id, text[::-1])
    house.run()
    assert [house.answers[id] for id in range(len(TEXTS))] == first
    house.close()


@pytest.fixture(
    scope="module",
    params=[(kind, unified) for kind in KINDS for unified in (True, False)],
    ids=[f"{kind}-{layout}" for kind in KINDS for layout in ("unified", "streams")],
)
def shared_house(request: pytest.FixtureRequest, tiny_models: dict[str, Path]) -> Iterator[House]:
    kind, unified = request.param
    # Room for two long requests at most, and for a few prefixes in memory.
    house = House(tiny_models[kind], kv_unified=unified, n_ctx=1024, cache_ram_bytes=768 * 600, parallel=3)
    yield house
    house.close()


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


@settings(max_examples=25)
@given(requests=_Requests)
def test_a_mix_of_arrivals_and_cancels_changes_nobodys_text(
    shared_house: House, requests: list[tuple[str, int, int, bool, bool]]
) -> None:
    """Each deterministic request gets the text it gets alone, however the rest comes, goes and crowds it."""
    house = shared_house
    house.answers.clear()
    house.finished.clear()
    for id, (text, size, steps, cancelled, deterministic) in enumerate(requests):
        house.ask(id, text, max_tokens=size, temperature=0.9, deterministic=deterministic)
        for _ in range(steps):
            house.step()
        if cancelled:
            house.scheduler.remove(id)
    house.run()
    together = {id: list(tokens) for id, tokens in house.answers.items()}
    for id, (text, size, _, cancelled, deterministic) in enumerate(requests):
        if deterministic:
            expected = house.alone(id, text, max_tokens=size, temperature=0.9, deterministic=True, namespace=None)
            seen = together.get(id, [])
            assert seen == expected[: len(seen)]
            assert cancelled or len(seen) == size


def test_requests_that_outgrow_the_cells_step_back_and_finish(tiny_models: dict[str, Path]) -> None:
    house = House(tiny_models["llama"], n_ctx=512, parallel=4)
    for id in range(4):
        house.ask(id, f"{id} " * 80, max_tokens=120)
    house.run()
    assert house.scheduler.preemptions > 0
    assert {id: len(tokens) for id, tokens in house.answers.items()} == dict.fromkeys(range(4), 120)
    house.close()


def test_constrained_requests_that_step_back_go_on_where_they_were(tiny_models: dict[str, Path]) -> None:
    house = House(tiny_models["llama"], n_ctx=512, parallel=4)
    grammar = house.engine.compile(Constraint("regex", "(one|two){40}(and|or){40}", "regex"))
    for id in range(4):
        house.ask(id, f"{id} " * 80, max_tokens=400, temperature=1.0, grammar=grammar)
    house.run()
    assert house.scheduler.preemptions > 0
    assert house.finished == dict.fromkeys(range(4), "stop")
    for tokens in house.answers.values():
        assert re.fullmatch(rb"(one|two){40}(and|or){40}", b"".join(map(house.engine.vocab.piece, tokens)))
    house.close()
