"""Checks that a library has the structs of `structs.py`.

llama.h changes its parameter structs between releases, and a library does not say which it has. One more field would
shift all others, silently. So the release must be a known one, and the defaults must be at their places.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from typing import Any

from paddock.engine.libllama.structs import ThreadPoolParams

KNOWN = ("0.4.1", "0.5.0")
"""Releases of llama.cpp (`llama_version`) with these structs."""

_NULL = None
_THREADS = 3
_Defaults = Mapping[str, Any]
MODEL: _Defaults = {
    "devices": _NULL,
    "tensor_buft_overrides": _NULL,
    "n_gpu_layers": -1,
    "split_mode": 1,
    "load_mode": -1,
    "lazy_mode": 1,
    "main_gpu": 0,
    "tensor_split": _NULL,
    "progress_callback": _NULL,
    "progress_callback_user_data": _NULL,
    "kv_overrides": _NULL,
    "vocab_only": False,
    "check_tensors": False,
    "use_extra_bufts": True,
    "no_host": False,
    "no_alloc": False,
    "load_mtp": False,
}
CONTEXT: _Defaults = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_rs_seq": 0,
    "n_outputs_max": 0,
    "n_outputs_max_per_seq": 1,
    "n_threads": 4,
    "n_threads_batch": 4,
    "ctx_type": 0,
    "rope_scaling_type": -1,
    "pooling_type": -1,
    "attention_type": -1,
    "flash_attn_type": -1,
    "rope_freq_base": 0.0,
    "rope_freq_scale": 0.0,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": -1.0,
    "yarn_beta_fast": -1.0,
    "yarn_beta_slow": -1.0,
    "yarn_orig_ctx": 0,
    "defrag_thold": -1.0,
    "cb_eval": _NULL,
    "cb_eval_user_data": _NULL,
    "type_k": 1,
    "type_v": 1,
    "abort_callback": _NULL,
    "abort_callback_data": _NULL,
    "embeddings": False,
    "offload_kqv": True,
    "no_perf": True,
    "op_offload": True,
    "swa_full": True,
    "kv_unified": False,
    "samplers": _NULL,
    "n_samplers": 0,
    "ctx_other": _NULL,
}
QUANTIZE: _Defaults = {
    "nthread": 0,
    "ftype": 7,
    "output_tensor_type": 43,  # the number of ggml's types: a new type could change what CACHE_TYPES mean
    "token_embedding_type": 43,
    "allow_requantize": False,
    "quantize_output_tensor": True,
    "only_copy": False,
}
THREADS: _Defaults = {"n_threads": _THREADS, "prio": 0, "poll": 50, "strict_cpu": False, "paused": False}
EMPTY_BATCH: _Defaults = {"n_tokens": 0, "embd": _NULL}
_BATCH_ARRAYS = ("token", "pos", "n_seq_id", "seq_id", "logits")


def is_known(version: str) -> bool:
    """`0.5.0-dev` is a build of `0.5.0`."""
    return version.partition("-")[0] in KNOWN


def find_mismatch(lib: Any) -> str | None:
    """The first default of this library that is not where it is expected, as text."""
    return next(_mismatches(lib), None)


def _mismatches(lib: Any) -> Iterator[str]:
    yield from compare("llama_model_params", lib.llama_model_default_params(), MODEL)
    yield from compare("llama_context_params", lib.llama_context_default_params(), CONTEXT)
    if lib.has("llama_model_quantize_default_params"):
        yield from compare("llama_model_quantize_params", lib.llama_model_quantize_default_params(), QUANTIZE)
    threads = ThreadPoolParams()
    lib.ggml_threadpool_params_init(ctypes.byref(threads), _THREADS)
    yield from compare("ggml_threadpool_params", threads, THREADS)
    batch = lib.llama_batch_init(1, 0, 1)
    yield from compare("llama_batch", batch, EMPTY_BATCH)
    yield from (f"llama_batch.{name} is not set" for name in _BATCH_ARRAYS if not getattr(batch, name))
    lib.llama_batch_free(batch)


def compare(struct: str, params: Any, defaults: _Defaults) -> Iterator[str]:
    """The defaults that are not where they are expected, as texts."""
    for name, expected in defaults.items():
        found = getattr(params, name)
        if bool(found) if expected is _NULL else found != expected:
            shown = "set" if expected is _NULL else repr(found)
            yield f"{struct}.{name} is {shown} by default, expected {'null' if expected is _NULL else repr(expected)}"
