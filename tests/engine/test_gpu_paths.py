"""The code paths for GPUs, run on the CPU, where they are slower but must give the same answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddock.engine.batch import padded_sizes
from paddock.engine.llama import LlamaEngine
from paddock.engine.prefix_memory import PrefixMemory
from paddock.types import Span
from tests.engine.harness import Harness
from tests.options import draft_params
from tests.tiers import examples

# Without flash attention and in full precision a token is the same in any step, except for its last bits.
_EXACT: dict[str, Any] = {
    "kv_unified": False,
    "flash_attn": "off",
    "cache_type_k": "f32",
    "cache_type_v": "f32",
    "n_ctx": 6 * 256,
    "parallel": 6,
    "n_batch": 512,
}


def _as_on_a_gpu(model: Path, **options: Any) -> Harness:
    harness = Harness(model, chunk=400, **_EXACT, **options)
    engine = harness.engine
    assert isinstance(engine, LlamaEngine)
    engine._pads = True
    assert isinstance(engine._memory, PrefixMemory)
    engine._memory._on_gpu = True
    return harness


@settings(examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 60), st.text("ab ", max_size=90)), min_size=2, max_size=9))
def test_padded_prompts_and_copied_streams_change_no_answer(
    tiny_models: dict[str, Path], asked: list[tuple[int, str]]
) -> None:
    texts = ["the shared beginning " * (shared // 20) + own + "." for shared, own in asked]
    plain = Harness(tiny_models["llama"], **_EXACT)
    alone = [plain.alone(id, text, namespace=None) for id, text in enumerate(texts)]
    plain.close()
    harness = _as_on_a_gpu(tiny_models["llama"])
    for id, text in enumerate(texts):
        harness.ask(id, text)
    harness.run()
    assert [harness.answers[id] for id in range(len(texts))] == alone
    harness.close()


def test_drafts_of_different_lengths_are_padded_and_change_no_answer(tiny_models: dict[str, Path]) -> None:
    plain = Harness(tiny_models["llama"], **_EXACT)
    harness = _as_on_a_gpu(tiny_models["llama"], model_draft=str(tiny_models["llama"]))
    alone = [plain.alone(id, f"{id} is it", max_tokens=50, temperature=0.8) for id in range(2)]
    for id in range(2):
        harness.ask(
            id,
            f"{id} is it",
            max_tokens=50,
            temperature=0.8,
            draft=draft_params(n_max=2 + 5 * id, p_min=0, priced=False),
        )
    harness.run()
    assert [harness.answers[id] for id in range(2)] == alone
    plain.close()
    harness.close()


def test_prompts_of_about_the_same_length_are_padded_to_one_length() -> None:
    answer, *prompts = [Span(id, 0, [5] * size) for id, size in enumerate((1, 90, 100, 30))]
    assert padded_sizes(prompts, capacity=512, n_ctx=256) == [100, 100, 30], "70 tokens cost more than a pass"
    assert padded_sizes([answer, *prompts], capacity=512, n_ctx=256) == [1, 100, 100, 30], "a decode is not padded"
    late = Span(1, 256 - 95, [5] * 90)
    assert padded_sizes([late, prompts[1]], capacity=512, n_ctx=256) == [90, 100], "the context is full"
