"""The structs and constants of llama.h and ggml.h that Paddock uses, as in llama.cpp 0.4.1 and 0.5.0.

`layout.py` checks that the library has these layouts. A struct that the library returns by value, or writes into, ends
with a reserve: a library whose struct is longer then writes there and not over other memory, and reads its own defaults
back. The functions that take such a struct by value take it as their last argument, so a longer one does no harm.
"""

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    Union,
    c_bool,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int8,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_void_p,
)

LogCallback = CFUNCTYPE(None, c_int, c_char_p, c_void_p)
"""Level, text, user data."""
ProgressCallback = CFUNCTYPE(c_bool, c_float, c_void_p)

SPLIT_MODES = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
LOAD_MODES = {"auto": -1, "none": 0, "mmap": 1, "mlock": 2, "mmap+mlock": 3, "dio": 4}
LAZY_MODES = {"off": 0, "auto": 1, "on": 2}
NUMA_STRATEGIES = {"distribute": 1, "isolate": 2, "numactl": 3}
ROPE_SCALING_TYPES = {"none": 0, "linear": 1, "yarn": 2}
POOLING_TYPES = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}
CACHE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30}
"""ggml's numbers of the types that keys and values may have."""

_MOST_CPUS = 512
_RESERVE = ("_reserve", c_char * 256)


class ModelParams(Structure):
    """llama_model_params"""

    _fields_ = (
        ("devices", c_void_p),
        ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int),
        ("load_mode", c_int),
        ("lazy_mode", c_int),
        ("main_gpu", c_int32),
        ("tensor_split", POINTER(c_float)),
        ("progress_callback", ProgressCallback),
        ("progress_callback_user_data", c_void_p),
        ("kv_overrides", c_void_p),
        ("vocab_only", c_bool),
        ("check_tensors", c_bool),
        ("use_extra_bufts", c_bool),
        ("no_host", c_bool),
        ("no_alloc", c_bool),
        ("load_mtp", c_bool),
        _RESERVE,
    )


class ContextParams(Structure):
    """llama_context_params"""

    _fields_ = (
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("n_rs_seq", c_uint32),
        ("n_outputs_max", c_uint32),
        ("n_outputs_max_per_seq", c_uint32),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("ctx_type", c_int),
        ("rope_scaling_type", c_int),
        ("pooling_type", c_int),
        ("attention_type", c_int),
        ("flash_attn_type", c_int),
        ("rope_freq_base", c_float),
        ("rope_freq_scale", c_float),
        ("yarn_ext_factor", c_float),
        ("yarn_attn_factor", c_float),
        ("yarn_beta_fast", c_float),
        ("yarn_beta_slow", c_float),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        ("cb_eval", c_void_p),
        ("cb_eval_user_data", c_void_p),
        ("type_k", c_int),
        ("type_v", c_int),
        ("abort_callback", c_void_p),
        ("abort_callback_data", c_void_p),
        ("embeddings", c_bool),
        ("offload_kqv", c_bool),
        ("no_perf", c_bool),
        ("op_offload", c_bool),
        ("swa_full", c_bool),
        ("kv_unified", c_bool),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
        _RESERVE,
    )


class QuantizeParams(Structure):
    """The first fields of llama_model_quantize_params, which only the self-test reads."""

    _fields_ = (
        ("nthread", c_int32),
        ("ftype", c_int),
        ("output_tensor_type", c_int),
        ("token_embedding_type", c_int),
        ("allow_requantize", c_bool),
        ("quantize_output_tensor", c_bool),
        ("only_copy", c_bool),
        _RESERVE,
    )


class Batch(Structure):
    """llama_batch"""

    _fields_ = (
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
        _RESERVE,
    )


class ChatMessage(Structure):
    """llama_chat_message"""

    _fields_ = (("role", c_char_p), ("content", c_char_p))


class TensorOverride(Structure):
    """llama_model_tensor_buft_override"""

    _fields_ = (("pattern", c_char_p), ("buffer", c_void_p))


class _MetadataValue(Union):
    _fields_ = (("val_i64", c_int64), ("val_f64", c_double), ("val_bool", c_bool), ("val_str", c_char * 128))


class MetadataOverride(Structure):
    """llama_model_kv_override"""

    _fields_ = (("tag", c_int), ("key", c_char * 128), ("value", _MetadataValue))


class ThreadPoolParams(Structure):
    """ggml_threadpool_params"""

    _fields_ = (
        ("cpumask", c_bool * _MOST_CPUS),
        ("n_threads", c_int),
        ("prio", c_int),
        ("poll", c_uint32),
        ("strict_cpu", c_bool),
        ("paused", c_bool),
        _RESERVE,
    )


class SamplerData(Structure):
    """llama_sampler_data: the tensors that a sampler receives, and leaves for the host."""

    _fields_ = (("logits", c_void_p), ("probs", c_void_p), ("sampled", c_void_p), ("candidates", c_void_p))


class SamplerChainParams(Structure):
    """llama_sampler_chain_params"""

    _fields_ = (("no_perf", c_bool),)


SamplerName = CFUNCTYPE(c_char_p, c_void_p)
SamplerApply = CFUNCTYPE(None, c_void_p, c_void_p)
SamplerInit = CFUNCTYPE(c_bool, c_void_p, c_void_p, c_uint32)
"""Sampler, buffer type, the most outputs of a sequence."""
SamplerBuild = CFUNCTYPE(None, c_void_p, c_void_p, c_void_p, POINTER(SamplerData))
"""Sampler, context of the tensors, graph, tensors."""


class SamplerInterface(Structure):
    """llama_sampler_i. Null: not there."""

    _fields_ = (
        ("name", SamplerName),
        ("accept", c_void_p),
        ("apply", SamplerApply),
        ("reset", c_void_p),
        ("clone", c_void_p),
        ("free", c_void_p),
        ("backend_init", SamplerInit),
        ("backend_accept", c_void_p),
        ("backend_apply", SamplerBuild),
        ("backend_set_input", c_void_p),
        ("backend_reset", c_void_p),
        ("copy_state", c_void_p),
        _RESERVE,
    )
