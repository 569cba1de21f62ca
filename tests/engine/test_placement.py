"""Placement options become the parameters that libllama gets, and libllama accepts them."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, get_args

import pytest

from paddock.cli.options import given_settings
from paddock.cli.serve import command
from paddock.config import ModelManagerSettings, ModelSettings
from paddock.engine import library
from paddock.engine.libllama import lib
from paddock.engine.libllama.structs import SPLIT_MODES
from paddock.engine.llama import LlamaEngine
from paddock.engine.placement import place_context, place_model
from paddock.errors import ModelLoadFailed
from paddock.fleet.catalogue import options
from paddock.types import SplitMode
from tests.options import engine_options


def _model_params(**settings: Any) -> Any:
    library.start(verbose=False)
    params = lib.llama_model_default_params()
    place_model(params, options.engine_options(ModelManagerSettings(**settings), verbose=False))
    return params


def _context_params(**settings: Any) -> Any:
    params = lib.llama_context_default_params()
    place_context(params, options.engine_options(ModelSettings(**settings), verbose=False))
    return params


def test_the_defaults_are_those_of_libllama() -> None:
    ours, theirs = _model_params(), lib.llama_model_default_params()
    for name in ("split_mode", "main_gpu", "load_mode", "lazy_mode", "use_extra_bufts", "no_host", "check_tensors"):
        assert getattr(ours, name) == getattr(theirs, name), name
    ours, theirs = _context_params(), lib.llama_context_default_params()
    for name in ("offload_kqv", "op_offload", "rope_scaling_type", "rope_freq_scale", "yarn_ext_factor"):
        assert getattr(ours, name) == getattr(theirs, name), name


def test_placement_by_value() -> None:
    params = _model_params(tensor_split=[3, 1], split_mode="row", main_gpu=1, load_mode="mmap+mlock", lazy_mode="on")
    assert list((ctypes.c_float * 2).from_address(ctypes.addressof(params.tensor_split.contents))) == [3, 1]
    assert (params.split_mode, params.main_gpu) == (2, 1)
    assert (params.load_mode, params.lazy_mode) == (3, 2)
    params = _context_params(
        n_threads_batch=3, kv_offload=False, op_offload=False, rope_scaling="yarn", rope_scale=4, yarn_orig_ctx=1024
    )
    assert (params.n_threads_batch, params.offload_kqv, params.op_offload) == (3, False, False)
    assert (params.rope_scaling_type, params.rope_freq_scale) == (2, 0.25)
    assert params.yarn_orig_ctx == 1024


@pytest.mark.parametrize("mode", get_args(SplitMode))
def test_flags_for_several_gpus_by_value(mode: str) -> None:
    line = ["-ts", "3/1,0.5", "-sm", mode, "-mg", "2", "-m", "model.gguf"]
    given = given_settings(command.make_context("serve", line).params)
    params = _model_params(**{key.removeprefix("model_manager."): value for key, value in given.items()})
    assert list((ctypes.c_float * 3).from_address(ctypes.addressof(params.tensor_split.contents))) == [3, 1, 0.5]
    assert (params.split_mode, params.main_gpu) == (SPLIT_MODES[mode], 2)


def test_experts_are_kept_in_host_memory_by_patterns() -> None:
    settings = ModelSettings(override_tensor=["attn=CPU"], cpu_moe=True, n_cpu_moe=2, n_cpu_ffn=1)
    experts, dense = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps", r"\.ffn_(up|down|gate)\."
    assert options.engine_options(settings, verbose=False).tensor_overrides == [
        ("attn", "CPU"),
        (experts, "CPU"),
        (rf"blk\.0{experts}", "CPU"),
        (rf"blk\.1{experts}", "CPU"),
        (rf"blk\.0{dense}", "CPU"),
    ]


def test_a_model_is_loaded_with_every_option(tiny_models: dict[str, Path]) -> None:
    engine = LlamaEngine(
        tiny_models["llama"],
        engine_options(
            n_ctx=64,
            tensor_overrides=[("ffn_", "CPU")],
            override_kv=[
                ("llama.context_length", 48),
                ("general.name", "other"),
                ("tokenizer.ggml.add_bos_token", True),
            ],
            load_mode="none",
            tensor_split=[1.0],
            device=["none"],
            n_threads_batch=2,
            kv_offload=False,
            repack=False,
            check_tensors=True,
        ),
        lambda _: None,
    )
    try:
        assert engine.info.n_ctx_train == 48
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"device": ["CUDA99"]}, "there is no device 'CUDA99'; there are: "),
        ({"tensor_overrides": [("ffn", "NOWHERE")]}, "there is no buffer type 'NOWHERE'; there are: CPU"),
    ],
)
def test_an_unknown_device_is_named(tiny_models: dict[str, Path], changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelLoadFailed, match=problem):
        LlamaEngine(tiny_models["llama"], engine_options(**changes), lambda _: None)


def test_scaled_positions_extend_the_context() -> None:
    assert engine_options().longest_context(1000) == 1000
    assert engine_options(rope_scaling="yarn", rope_freq_scale=0.25).longest_context(1000) == 4000
    assert engine_options(rope_freq_scale=0.5, yarn_orig_ctx=4000).longest_context(1000) == 8000
    assert engine_options(rope_scaling="none", rope_freq_scale=0.5).longest_context(1000) == 1000
