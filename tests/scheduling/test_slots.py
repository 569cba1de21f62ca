"""Slots: what they show, and saving, restoring and erasing their prefixes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddock.scheduling.plan import GRID
from tests.scheduling.harness import Harness, Texts


@given(st.lists(st.tuples(Texts, st.booleans()), min_size=1, max_size=4), st.booleans(), st.booleans())
def test_a_saved_slot_can_be_restored_in_another_engine(
    asked: list[tuple[str, bool]], unified: bool, elsewhere: bool
) -> None:
    first = Harness(kv_unified=unified)
    for id, (text, deterministic) in enumerate(asked):
        first.ask(id, text * 3, wanted_slot=id, deterministic=deterministic)
    first.run()
    second = Harness(kv_unified=elsewhere, parallel=6)
    for id, (text, deterministic) in enumerate(asked):
        prefix, packed = first.save(id)
        assert second.restore(5, prefix, packed) == len(prefix.tokens)
        again = second.ask(id, text * 3, deterministic=deterministic)
        second.run()
        grid = GRID if deterministic else 1
        assert again.cached == (again.prompt_size - 1) // grid * grid
        assert second.text(id) == first.text(id)


@given(st.lists(Texts, min_size=2, max_size=4), st.booleans())
def test_erasing_a_slot_takes_nothing_from_another(texts: list[str], unified: bool) -> None:
    harness = Harness(kv_unified=unified)
    for id, text in enumerate(texts):
        harness.ask(id, text, wanted_slot=id)
    harness.run()
    remembered = [harness.save(slot) for slot in range(len(texts))]
    before = harness.scheduler.cache.stored
    erased = harness.scheduler.slots.erase(0)
    harness.tidy()
    assert before - erased <= harness.scheduler.cache.stored <= before
    assert harness.save(0)[0].tokens == []
    assert [harness.save(slot) for slot in range(1, len(texts))] == remembered[1:]
    mine = tuple(remembered[0][0].tokens)
    shared = max(_common(mine, tuple(other.tokens)) for other, _ in remembered[1:])
    assert erased == len(mine) - shared


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_a_slot_restored_into_too_little_memory_keeps_its_first_tokens() -> None:
    first = Harness()
    first.ask(1, "a" * 400, wanted_slot=0)
    first.run()
    prefix, packed = first.save(0)
    second = Harness(cache_ram_bytes=300 * 1024)
    known = second.restore(2, prefix, packed)
    assert 0 < known <= 300
    assert second.save(2)[0].tokens == prefix.tokens[:known]
    assert Harness(cache_ram_bytes=0).restore(2, prefix, packed) == 0


def test_a_slot_shows_its_current_request_and_then_its_last() -> None:
    harness = Harness(parallel=2)
    request = harness.ask(1, "a" * 30, wanted_slot=1)
    harness.step()
    assert [(slot.busy, slot.request) for slot in harness.scheduler.slots] == [(False, None), (True, request)]
    assert not harness.scheduler.slots.is_free(1)
    harness.run()
    (_, slot) = harness.scheduler.slots
    assert (slot.busy, slot.request, len(slot.prefix.tokens)) == (False, request, request.computed)
    harness.ask(2, "a", wanted_slot=1, namespace=None)
    harness.run()
    assert harness.save(1)[0].tokens == [], "a prefix that must not be stored cannot be saved"
