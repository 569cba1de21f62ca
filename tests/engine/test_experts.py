"""Where the weights of experts are kept, by what libllama reports when it loads a mixture-of-experts model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paddock.config import ModelSettings
from paddock.engine import open_engine
from paddock.fleet.catalogue import options
from paddock.fleet.catalogue.headers import read_header
from paddock.fleet.catalogue.tensor_overrides import EXPERTS
from paddock.fleet.memory.estimate import estimate, estimate_draft
from tests.engine.harness import Harness

_PLACED = re.compile(r"tensor (\S+) \(.*\) buffer type overridden to (\S+)")
_EXPERTS = [f"ffn_{part}_exps.weight" for part in ("gate", "up", "down")]


def _settings(**changes: Any) -> ModelSettings:
    return ModelSettings(n_threads=1, parallel=4, kv_unified=True, n_ctx=256, cache_ram=0, **changes)


def _placed(path: Path, capsys: pytest.CaptureFixture[str], draft: Path | None = None, **changes: Any) -> set[str]:
    """The tensors that libllama keeps in the buffer type `CPU` because the options say so."""
    made = options.engine_options(_settings(**changes), verbose=True)
    if draft is not None:
        made = msgspec.structs.replace(made, model_draft=str(draft))
    capsys.readouterr()
    open_engine(str(path), made, lambda _: None).close()
    lines = _PLACED.findall(capsys.readouterr().err)
    assert {buffer for _, buffer in lines} <= {"CPU"}
    return {name for name, _ in lines}


def _experts(*layers: int) -> set[str]:
    return {f"blk.{layer}.{part}" for layer in layers for part in _EXPERTS}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, set()),
        ({"cpu_moe": True}, _experts(0, 1, 2)),
        ({"n_cpu_moe": 1}, _experts(0)),
        ({"n_cpu_moe": 2}, _experts(0, 1)),
        ({"n_cpu_moe": 99}, _experts(0, 1, 2)),
        ({"override_tensor": ["exps=CPU"]}, _experts(0, 1, 2)),
        ({"override_tensor": [r"blk\.[12]\.ffn_.*_exps=CPU"]}, _experts(1, 2)),
        ({"override_tensor": [r"blk\.0\.attn_(k|v)=CPU"]}, {"blk.0.attn_k.weight", "blk.0.attn_v.weight"}),
        ({"n_cpu_ffn": 3}, set()),  # this model has no dense feed-forward weights
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_the_weights_of_experts_are_where_the_options_say(
    tiny_models: dict[str, Path], capsys: pytest.CaptureFixture[str], changes: dict[str, Any], expected: set[str]
) -> None:
    assert _placed(tiny_models["experts"], capsys, **changes) == expected


def test_a_draft_model_has_a_placement_of_its_own(
    tiny_models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model, draft = tiny_models["llama"], tiny_models["experts"]
    assert _placed(model, capsys, draft, cpu_moe=True, n_cpu_moe=3, override_tensor=["exps=CPU"]) == set()
    assert _placed(model, capsys, draft, cpu_moe_draft=True) == _experts(0, 1, 2)
    assert _placed(model, capsys, draft, n_cpu_moe_draft=2) == _experts(0, 1)
    assert _placed(model, capsys, draft, override_tensor_draft=["blk.2.*exps=CPU"]) == _experts(2)
    dense = _placed(model, capsys, draft, n_cpu_ffn=1, n_cpu_moe_draft=1)
    assert dense == _experts(0) | {f"blk.0.ffn_{part}.weight" for part in ("gate", "up", "down")}


def test_the_placement_of_a_draft_model() -> None:
    made = options.engine_options(_settings(device=["none"], cache_type_k="q8_0", tensor_split=[1, 2]), verbose=False)
    as_draft = made.placed_as_draft()
    assert (as_draft.device, as_draft.cache_type_k, as_draft.cache_type_v) == (["none"], "q8_0", "f16")
    settings = _settings(device=["none"], device_draft=["CUDA1"], cache_type_k_draft="q4_0", cache_type_v_draft="q8_0")
    as_draft = options.engine_options(settings, verbose=False).placed_as_draft()
    assert (as_draft.device, as_draft.cache_type_k, as_draft.cache_type_v) == (["CUDA1"], "q4_0", "q8_0")


def test_the_text_does_not_depend_on_the_placement(tiny_models: dict[str, Path]) -> None:
    exact = {"flash_attn": "off", "cache_type_k": "f32", "cache_type_v": "f32", "n_threads": 1}
    texts = []
    for overrides in ([], [(EXPERTS, "CPU")]):
        harness = Harness(tiny_models["experts"], tensor_overrides=overrides, **exact)
        texts.append(harness.alone(1, "the horse ", max_tokens=20))
        harness.close()
    assert texts[0] == texts[1]


def test_the_estimate_counts_experts_in_host_memory(tiny_models: dict[str, Path]) -> None:
    header = read_header(tiny_models["experts"])
    size = sum(tensor.size for tensor in header.tensors if "_exps" in tensor.name)

    def weights(**changes: Any) -> tuple[int, int]:
        found = estimate(header, options.engine_options(_settings(**changes), verbose=False), gpu=True)
        return found.host.weights, found.device.weights

    host, device = weights()
    assert weights(cpu_moe=True) == (host + size, device - size)
    assert weights(n_cpu_moe=1) == (host + size // 3, device - size // 3)
    draft = options.engine_options(_settings(cpu_moe=True, n_cpu_moe_draft=1), verbose=False)
    assert estimate_draft(header, header, draft, gpu=True).device.weights == device - size // 3


def test_the_estimate_counts_the_cache_types_of_the_draft_model(tiny_models: dict[str, Path]) -> None:
    header = read_header(tiny_models["experts"])

    def cache(**changes: Any) -> int:
        made = options.engine_options(_settings(**changes), verbose=False)
        return estimate_draft(header, header, made, gpu=False).host.cache

    assert cache(cache_type_k_draft="f32", cache_type_v_draft="f32") == 2 * cache()
    assert cache(cache_type_k="f32", cache_type_v="f32") == 2 * cache()
