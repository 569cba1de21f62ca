"""Saving states and restoring them in another engine, with libllama and a tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paddock.types import SlotPrefix
from tests.engine.harness import Harness
from tests.tiers import full

TEXT = " ".join(f"the {n} of and in an{n}" for n in range(40))


def _save(harness: Harness, slot: int) -> tuple[SlotPrefix, bytes]:
    harness.run()
    prefix, pieces = harness.scheduler.slots.recall(slot)
    return prefix, b"".join(harness.engine.pack(harness.engine.view_pieces(pieces)))


def _restore(harness: Harness, slot: int, prefix: SlotPrefix, packed: bytes) -> int:
    return harness.scheduler.slots.adopt(slot, prefix, harness.engine.unpack(memoryview(packed), len(prefix.tokens)))


@full
@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"flash_attn": "off"}, {"flash_attn": "on", "cache_type_k": "q8_0", "cache_type_v": "q4_0"}]
)
def test_a_state_can_be_restored_in_another_layout(
    tiny_models: dict[str, Path], here: bool, there: bool, options: dict[str, Any]
) -> None:
    first = Harness(tiny_models["llama"], kv_unified=here, **options)
    first.alone(1, TEXT, wanted_slot=2)
    first.alone(2, TEXT[:200], wanted_slot=2)  # another branch, so that the saved state consists of several spans
    warm = first.alone(1, TEXT, wanted_slot=2)
    prefix, packed = _save(first, 2)
    assert len(packed) == len(prefix.tokens) * first.engine.shape.bytes_per_token
    second = Harness(tiny_models["llama"], kv_unified=there, parallel=3, n_ctx=3072, **options)
    assert second.engine.origin.flash_attn == first.engine.origin.flash_attn == (options.get("flash_attn") != "off")
    second.alone(3, TEXT[:300])  # a part of it is cached already
    assert _restore(second, 1, prefix, packed) == len(prefix.tokens)
    assert _save(second, 1) == (prefix, packed)
    request = second.ask(1, TEXT)
    second.run()
    assert request.cached == request.prompt_size - 1
    assert second.answers[1] == warm
    first.close()
    second.close()


@pytest.mark.parametrize("known", [0, 100, len(TEXT) - 30])
def test_only_missing_tokens_are_adopted(tiny_models: dict[str, Path], known: int) -> None:
    """Also a few tokens. They stay valid without the buffer and the spans that they came with."""
    harness = Harness(tiny_models["llama"])
    harness.alone(1, TEXT, wanted_slot=0)
    warm = harness.alone(1, TEXT, wanted_slot=0)
    prefix, packed = _save(harness, 0)
    assert harness.scheduler.slots.erase(0) == len(prefix.tokens)
    if known:
        harness.alone(2, TEXT[:known], wanted_slot=1)
    _restore(harness, 0, prefix, packed)
    assert _save(harness, 0)[0] == prefix
    harness.scheduler.slots.erase(1)
    assert harness.alone(1, TEXT, wanted_slot=0) == warm
    harness.close()


def test_a_state_of_the_wrong_size_is_refused(tiny_models: dict[str, Path]) -> None:
    harness = Harness(tiny_models["llama"])
    size = harness.engine.shape.bytes_per_token
    for data, tokens in ((bytes(size), 2), (bytes(size + 1), 1), (b"", 1)):
        with pytest.raises(ValueError, match="bytes for"):
            harness.engine.unpack(memoryview(data), tokens)
    harness.close()


def test_origins_differ_between_models_and_settings(tiny_models: dict[str, Path]) -> None:
    harnesses = [
        Harness(tiny_models["llama"]),
        Harness(tiny_models["llama"], parallel=2, n_ctx=512),
        Harness(tiny_models["llama"], kv_unified=False),
        Harness(tiny_models["llama"], cache_type_k="q8_0"),
        Harness(tiny_models["recurrent"]),
    ]
    one, fewer, streams, quantised, recurrent = (harness.engine.origin for harness in harnesses)
    assert one == fewer
    assert one.arithmetic != streams.arithmetic
    assert quantised.cache_type_k == "q8_0"
    assert recurrent.model != one.model
    for harness in harnesses:
        harness.close()
