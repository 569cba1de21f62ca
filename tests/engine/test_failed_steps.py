"""Steps that libllama cannot compute, and their requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.engine.libllama import lib
from paddock.engine.loading import needs_cpu
from paddock.errors import DecodeFailed
from tests.engine.harness import Harness
from tests.tiers import examples


@examples(25)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=6),
    st.integers(0, 150),
    st.booleans(),
)
def test_with_fewer_cells_than_reported_requests_that_fit_get_the_same_answer(
    asked: list[tuple[int, int]], short: int, whole: bool
) -> None:
    path = f"fake:n_ctx=256,short={short},whole={int(whole)}"
    crowded, roomy = Harness(path, kv_unified=True), Harness("fake:n_ctx=4096", kv_unified=True)
    for harness in (crowded, roomy):
        for id, (size, length) in enumerate(asked):
            harness.ask(id, chr(97 + id) * size, max_tokens=length)
        harness.run()
    for id, (size, length) in enumerate(asked):
        if 1 + size + length <= 256 - short:
            assert crowded.finished[id] == roomy.finished[id]
        if crowded.finished[id] != "no room":
            assert crowded.answers[id] == roomy.answers[id]
    crowded.scheduler.check_idle()


@pytest.mark.parametrize("status", [2, -2, -3])
@pytest.mark.parametrize("kv_unified", [True, False])
def test_a_step_that_fails_once_is_repeated_and_changes_no_answer(
    status: int, kv_unified: bool, tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(harness: Harness) -> list[list[int]]:
        for id in range(3):
            harness.ask(id, "Once upon a time " * (id + 1), max_tokens=8)
        harness.run()
        harness.close()
        return [harness.answers[id] for id in range(3)]

    expected = answers(Harness(tiny_models["llama"], kv_unified=kv_unified))
    harness = Harness(tiny_models["llama"], kv_unified=kv_unified)
    real, steps = lib.llama_decode, 0

    def failing(context: Any, batch: Any) -> int:
        nonlocal steps
        steps += 1
        done = int(real(context, batch))
        return status if steps % 3 == 1 and done == 0 else done  # the computed tokens stay in the cache

    monkeypatch.setattr(lib, "llama_decode", failing)
    assert answers(harness) == expected


def test_a_step_that_fails_again_is_an_error(tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(tiny_models["llama"])
    harness.ask(0, "Once")
    monkeypatch.setattr(lib, "llama_decode", lambda *_: -3)
    with pytest.raises(DecodeFailed, match="-3"):
        harness.run()


def test_a_failing_draft_model_costs_only_its_drafts(
    tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(harness: Harness) -> list[int]:
        tokens = harness.alone(0, "Once upon a time", max_tokens=12)
        harness.close()
        return tokens

    expected = answer(Harness(tiny_models["llama"]))
    harness = Harness(tiny_models["llama"], model_draft=str(tiny_models["draft"]))
    target = harness.engine._context  # type: ignore[attr-defined]
    real = lib.llama_decode
    monkeypatch.setattr(
        lib, "llama_decode", lambda context, batch: int(real(context, batch)) if context == target else -3
    )
    assert answer(harness) == expected


@given(st.integers(-1, 60), st.integers(1, 48), st.booleans())
def test_a_model_with_a_layer_on_the_cpu_needs_the_cpu(n_gpu_layers: int, n_layers: int, has_gpu: bool) -> None:
    all_on_gpu = has_gpu and (n_gpu_layers < 0 or n_gpu_layers >= n_layers + 1)
    assert needs_cpu(n_gpu_layers, n_layers, has_gpu=has_gpu) == (not all_on_gpu)
