"""States that leave one engine and enter another, with libllama on a tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paddock.types import SlotPrefix
from tests.engine.house import House

TEXT = " ".join(f"the {n} of and in an{n}" for n in range(40))


def _save(house: House, slot: int) -> tuple[SlotPrefix, bytes]:
    house.run()
    prefix, pieces = house.scheduler.slots.recall(slot)
    return prefix, b"".join(house.engine.pack(house.engine.lend(pieces)))


def _restore(house: House, slot: int, prefix: SlotPrefix, packed: bytes) -> int:
    return house.scheduler.slots.adopt(slot, prefix, house.engine.unpack(memoryview(packed), len(prefix.tokens)))


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"flash_attn": "off"}, {"flash_attn": "on", "cache_type_k": "q8_0", "cache_type_v": "q4_0"}]
)
def test_a_state_survives_the_way_from_layout_to_layout(
    tiny_models: dict[str, Path], here: bool, there: bool, options: dict[str, Any]
) -> None:
    first = House(tiny_models["llama"], kv_unified=here, **options)
    first.alone(1, TEXT, wanted_slot=2)
    first.alone(2, TEXT[:200], wanted_slot=2)  # another branch, so that what is saved lies in several spans
    warm = first.alone(1, TEXT, wanted_slot=2)
    prefix, packed = _save(first, 2)
    assert len(packed) == len(prefix.tokens) * first.engine.shape.bytes_per_token
    second = House(tiny_models["llama"], kv_unified=there, parallel=3, n_ctx=3072, **options)
    assert second.engine.origin.flash_attn == first.engine.origin.flash_attn == (options.get("flash_attn") != "off")
    second.alone(3, TEXT[:300])  # a part of it is known already
    assert _restore(second, 1, prefix, packed) == len(prefix.tokens)
    assert _save(second, 1) == (prefix, packed)
    request = second.ask(1, TEXT)
    second.run()
    assert request.cached == request.prompt_size - 1
    assert second.answers[1] == warm
    first.close()
    second.close()


@pytest.mark.parametrize("known", [0, 100, len(TEXT) - 30])
def test_only_what_is_missing_is_adopted(tiny_models: dict[str, Path], known: int) -> None:
    """However little that is: it outlives the memory it came in, and the others that came with it."""
    house = House(tiny_models["llama"])
    house.alone(1, TEXT, wanted_slot=0)
    warm = house.alone(1, TEXT, wanted_slot=0)
    prefix, packed = _save(house, 0)
    assert house.scheduler.slots.erase(0) == len(prefix.tokens)
    if known:
        house.alone(2, TEXT[:known], wanted_slot=1)
    _restore(house, 0, prefix, packed)
    assert _save(house, 0)[0] == prefix
    house.scheduler.slots.erase(1)
    assert house.alone(1, TEXT, wanted_slot=0) == warm
    house.close()


def test_a_state_of_the_wrong_size_is_refused(tiny_models: dict[str, Path]) -> None:
    house = House(tiny_models["llama"])
    size = house.engine.shape.bytes_per_token
    for data, tokens in ((bytes(size), 2), (bytes(size + 1), 1), (b"", 1)):
        with pytest.raises(ValueError, match="bytes for"):
            house.engine.unpack(memoryview(data), tokens)
    house.close()


def test_origins_tell_models_and_settings_apart(tiny_models: dict[str, Path]) -> None:
    houses = [
        House(tiny_models["llama"]),
        House(tiny_models["llama"], parallel=2, n_ctx=512),
        House(tiny_models["llama"], kv_unified=False),
        House(tiny_models["llama"], cache_type_k="q8_0"),
        House(tiny_models["recurrent"]),
    ]
    one, fewer, streams, quantised, recurrent = (house.engine.origin for house in houses)
    assert one == fewer
    assert one.arithmetic != streams.arithmetic
    assert quantised.cache_type_k == "q8_0"
    assert recurrent.model != one.model
    for house in houses:
        house.close()
