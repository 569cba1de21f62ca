"""Which servers can use each other's states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paddock.engine import open_engine
from paddock.engine.fingerprint import origin
from paddock.types import StateOrigin
from tests.options import engine_options


def _origin(path: Path, *, beyond_original: bool = False, has_positions: bool = False, **options: Any) -> StateOrigin:
    return origin(
        path,
        engine_options(**options),
        unified=True,
        flash_attn=True,
        beyond_original=beyond_original,
        has_positions=has_positions,
    )


def _model(folder: Path, name: str = "model.gguf", size: int = 5 << 20) -> Path:
    path = folder / name
    path.write_bytes(bytes(range(256)) * (size // 256))
    return path


@pytest.mark.parametrize(
    "change",
    [
        {"rope_freq_base": 1e6}, {"rope_freq_scale": 0.5}, {"rope_scaling": "yarn"}, {"yarn_orig_ctx": 4096},
        {"override_kv": [("llama.rope.freq_base", 1e6)]}, {"swa_full": True}, {"beyond_original": True},
        {"has_positions": True},
    ],
)  # fmt: skip
def test_options_that_change_a_state_change_its_origin(tmp_path: Path, change: dict[str, Any]) -> None:
    path = _model(tmp_path)
    changed, plain = _origin(path, **change), _origin(path)
    assert changed.settings and not plain.settings
    assert changed.arithmetic == plain.arithmetic and changed.model == plain.model


def test_earlier_states_change_only_the_last_bits(tmp_path: Path) -> None:
    path = _model(tmp_path)
    some, none = (_origin(path, max_rolled_back=most) for most in (4, 0))
    assert some.arithmetic == f"{none.arithmetic.removesuffix(', kv_unified True')}, max_rolled_back 4, kv_unified True"
    assert some.settings == none.settings


def test_a_model_that_differs_in_its_middle_is_another_model(tmp_path: Path) -> None:
    path = _model(tmp_path)
    before = _origin(path).model
    assert before == _origin(_model(tmp_path, "copy.gguf")).model
    with path.open("r+b") as file:
        file.seek(2 << 20)
        file.write(bytes(200_000))  # as one fine-tuned tensor
    assert _origin(path).model != before


def test_all_files_of_a_split_model_count(tmp_path: Path) -> None:
    first, second = (_model(tmp_path, f"[model]-0000{number}-of-00002.gguf", 3 << 20) for number in (1, 2))
    before = _origin(first).model
    second.write_bytes(second.read_bytes()[::-1])
    assert _origin(first).model != before


@pytest.mark.parametrize(("n_ctx", "settings"), [(128, ""), (4096, "beyond the original context")])
def test_the_engine_says_when_positions_may_be_scaled(tiny_models: dict[str, Path], n_ctx: int, settings: str) -> None:
    options = engine_options(n_ctx=n_ctx, parallel=1, rope_freq_scale=0.125 if settings else None)
    engine = open_engine(str(tiny_models["llama"]), options, lambda _: None)
    try:
        assert engine.origin.settings.endswith(settings) and bool(engine.origin.settings) == bool(settings)
    finally:
        engine.close()
