"""The functions of llama.h and ggml that Paddock calls, with their types."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import (
    POINTER,
    c_bool,
    c_char_p,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

from paddock.engine.libllama.structs import (
    Batch,
    ChatMessage,
    ContextParams,
    LogCallback,
    ModelParams,
    QuantizeParams,
    SamplerChainParams,
    ThreadPoolParams,
)

_MODEL = _CONTEXT = _VOCAB = _MEMORY = _ADAPTER = _DEVICE = _REGISTRY = _POOL = c_void_p
_SAMPLER = _TENSOR = _TENSORS = _GRAPH = c_void_p
_TOKEN = _POSITION = _SEQUENCE = c_int32
_FLOATS = POINTER(c_float)
_BYTES = POINTER(c_uint8)

Signature = tuple[Any, tuple[Any, ...]]
"""The type of the result, and those of the arguments."""

REQUIRED: Mapping[str, Signature] = {
    "llama_adapter_lora_init": (_ADAPTER, (_MODEL, c_char_p)),
    "llama_attach_threadpool": (None, (_CONTEXT, _POOL, _POOL)),
    "llama_backend_init": (None, ()),
    "llama_batch_free": (None, (Batch,)),
    "llama_batch_init": (Batch, (c_int32, c_int32, c_int32)),
    "llama_chat_apply_template": (c_int32, (c_char_p, POINTER(ChatMessage), c_size_t, c_bool, c_char_p, c_int32)),
    "llama_context_default_params": (ContextParams, ()),
    "llama_decode": (c_int32, (_CONTEXT, Batch)),
    "llama_encode": (c_int32, (_CONTEXT, Batch)),
    "llama_free": (None, (_CONTEXT,)),
    "llama_get_embeddings": (_FLOATS, (_CONTEXT,)),
    "llama_get_embeddings_seq": (_FLOATS, (_CONTEXT, _SEQUENCE)),
    "llama_get_logits": (_FLOATS, (_CONTEXT,)),
    "llama_get_memory": (_MEMORY, (_CONTEXT,)),
    "llama_init_from_model": (_CONTEXT, (_MODEL, ContextParams)),
    "llama_log_set": (None, (LogCallback, c_void_p)),
    "llama_max_devices": (c_size_t, ()),
    "llama_memory_clear": (None, (_MEMORY, c_bool)),
    "llama_memory_seq_cp": (None, (_MEMORY, _SEQUENCE, _SEQUENCE, _POSITION, _POSITION)),
    "llama_memory_seq_pos_max": (_POSITION, (_MEMORY, _SEQUENCE)),
    "llama_memory_seq_pos_min": (_POSITION, (_MEMORY, _SEQUENCE)),
    "llama_memory_seq_rm": (c_bool, (_MEMORY, _SEQUENCE, _POSITION, _POSITION)),
    "llama_model_chat_template": (c_char_p, (_MODEL, c_char_p)),
    "llama_model_default_params": (ModelParams, ()),
    "llama_model_desc": (c_int32, (_MODEL, c_char_p, c_size_t)),
    "llama_model_free": (None, (_MODEL,)),
    "llama_model_get_vocab": (_VOCAB, (_MODEL,)),
    "llama_model_has_decoder": (c_bool, (_MODEL,)),
    "llama_model_is_hybrid": (c_bool, (_MODEL,)),
    "llama_model_is_recurrent": (c_bool, (_MODEL,)),
    "llama_model_load_from_file": (_MODEL, (c_char_p, ModelParams)),
    "llama_model_meta_val_str": (c_int32, (_MODEL, c_char_p, c_char_p, c_size_t)),
    "llama_model_n_cls_out": (c_uint32, (_MODEL,)),
    "llama_model_n_ctx_train": (c_int32, (_MODEL,)),
    "llama_model_n_embd_out": (c_int32, (_MODEL,)),
    "llama_model_n_layer": (c_int32, (_MODEL,)),
    "llama_model_n_params": (c_uint64, (_MODEL,)),
    "llama_model_n_swa": (c_int32, (_MODEL,)),
    "llama_model_size": (c_uint64, (_MODEL,)),
    "llama_n_batch": (c_uint32, (_CONTEXT,)),
    "llama_n_ctx": (c_uint32, (_CONTEXT,)),
    "llama_n_ctx_seq": (c_uint32, (_CONTEXT,)),
    "llama_n_rs_seq": (c_uint32, (_CONTEXT,)),
    "llama_n_seq_max": (c_uint32, (_CONTEXT,)),
    "llama_numa_init": (None, (c_int,)),
    "llama_print_system_info": (c_char_p, ()),
    "llama_set_adapters_lora": (c_int32, (_CONTEXT, POINTER(_ADAPTER), c_size_t, _FLOATS)),
    "llama_state_seq_get_data": (c_size_t, (_CONTEXT, _BYTES, c_size_t, _SEQUENCE)),
    "llama_state_seq_get_data_ext": (c_size_t, (_CONTEXT, _BYTES, c_size_t, _SEQUENCE, c_uint32)),
    "llama_state_seq_get_size_ext": (c_size_t, (_CONTEXT, _SEQUENCE, c_uint32)),
    "llama_state_seq_set_data": (c_size_t, (_CONTEXT, _BYTES, c_size_t, _SEQUENCE)),
    "llama_state_seq_set_data_ext": (c_size_t, (_CONTEXT, _BYTES, c_size_t, _SEQUENCE, c_uint32)),
    "llama_synchronize": (None, (_CONTEXT,)),
    "llama_token_to_piece": (c_int32, (_VOCAB, _TOKEN, c_char_p, c_int32, c_int32, c_bool)),
    "llama_tokenize": (c_int32, (_VOCAB, c_char_p, c_int32, POINTER(_TOKEN), c_int32, c_bool, c_bool)),
    "llama_version": (c_char_p, ()),
    "llama_vocab_get_text": (c_char_p, (_VOCAB, _TOKEN)),
    "llama_vocab_is_control": (c_bool, (_VOCAB, _TOKEN)),
    "llama_vocab_is_eog": (c_bool, (_VOCAB, _TOKEN)),
    "llama_vocab_n_tokens": (c_int32, (_VOCAB,)),
    "llama_vocab_type": (c_int, (_VOCAB,)),
    **{f"llama_vocab_get_add_{name}": (c_bool, (_VOCAB,)) for name in ("bos", "eos", "sep")},
    **{
        f"llama_vocab_{name}": (_TOKEN, (_VOCAB,))
        for name in ("bos", "eos", "sep", "fim_pre", "fim_suf", "fim_mid", "fim_rep", "fim_sep")
    },
    "ggml_backend_buffer_free": (None, (c_void_p,)),
    "ggml_backend_buffer_get_base": (c_void_p, (c_void_p,)),
    "ggml_backend_buft_alloc_buffer": (c_void_p, (c_void_p, c_size_t)),
    "ggml_backend_buft_name": (c_char_p, (c_void_p,)),
    "ggml_backend_dev_backend_reg": (_REGISTRY, (_DEVICE,)),
    "ggml_backend_dev_buffer_type": (c_void_p, (_DEVICE,)),
    "ggml_backend_dev_by_type": (_DEVICE, (c_int,)),
    "ggml_backend_dev_count": (c_size_t, ()),
    "ggml_backend_dev_description": (c_char_p, (_DEVICE,)),
    "ggml_backend_dev_host_buffer_type": (c_void_p, (_DEVICE,)),
    "ggml_backend_dev_get": (_DEVICE, (c_size_t,)),
    "ggml_backend_dev_memory": (None, (_DEVICE, POINTER(c_size_t), POINTER(c_size_t))),
    "ggml_backend_dev_name": (c_char_p, (_DEVICE,)),
    "ggml_backend_dev_type": (c_int, (_DEVICE,)),
    "ggml_backend_reg_by_name": (_REGISTRY, (c_char_p,)),
    "ggml_backend_reg_get_proc_address": (c_void_p, (_REGISTRY, c_char_p)),
    "ggml_backend_register": (None, (_REGISTRY,)),
    "ggml_commit": (c_char_p, ()),
    "ggml_threadpool_params_init": (None, (POINTER(ThreadPoolParams), c_int)),
    "ggml_version": (c_char_p, ()),
}

SAMPLERS: Mapping[str, Signature] = {
    "ggml_argsort_top_k": (_TENSOR, (_TENSORS, _TENSOR, c_int)),
    "ggml_backend_buft_get_device": (_DEVICE, (c_void_p,)),
    "ggml_backend_dev_supports_op": (c_bool, (_DEVICE, _TENSOR)),
    "ggml_concat": (_TENSOR, (_TENSORS, _TENSOR, _TENSOR, c_int)),
    "ggml_cont": (_TENSOR, (_TENSORS, _TENSOR)),
    "ggml_get_rows": (_TENSOR, (_TENSORS, _TENSOR, _TENSOR)),
    "ggml_graph_get_tensor": (_TENSOR, (_GRAPH, c_char_p)),
    "ggml_nelements": (c_int64, (_TENSOR,)),
    "ggml_nrows": (c_int64, (_TENSOR,)),
    "ggml_pool_1d": (_TENSOR, (_TENSORS, _TENSOR, c_int, c_int, c_int, c_int)),
    "ggml_reshape_1d": (_TENSOR, (_TENSORS, _TENSOR, c_int64)),
    "ggml_reshape_2d": (_TENSOR, (_TENSORS, _TENSOR, c_int64, c_int64)),
    "ggml_reshape_3d": (_TENSOR, (_TENSORS, _TENSOR, c_int64, c_int64, c_int64)),
    "ggml_sum_rows": (_TENSOR, (_TENSORS, _TENSOR)),
    "ggml_view_2d": (_TENSOR, (_TENSORS, _TENSOR, c_int64, c_int64, c_size_t, c_size_t)),
    "llama_get_sampled_candidates_ith": (c_void_p, (_CONTEXT, c_int32)),
    "llama_get_sampled_logits_count_ith": (c_uint32, (_CONTEXT, c_int32)),
    "llama_get_sampled_logits_ith": (c_void_p, (_CONTEXT, c_int32)),
    "llama_get_sampled_probs_count_ith": (c_uint32, (_CONTEXT, c_int32)),
    "llama_get_sampled_probs_ith": (c_void_p, (_CONTEXT, c_int32)),
    "llama_sampler_accept": (None, (_SAMPLER, _TOKEN)),
    "llama_sampler_apply": (None, (_SAMPLER, c_void_p)),
    "llama_sampler_chain_add": (None, (_SAMPLER, _SAMPLER)),
    "llama_sampler_chain_init": (_SAMPLER, (SamplerChainParams,)),
    "llama_sampler_free": (None, (_SAMPLER,)),
    "llama_sampler_init": (_SAMPLER, (c_void_p, c_void_p)),
    "llama_sampler_reset": (None, (_SAMPLER,)),
    "llama_set_sampler": (c_bool, (_CONTEXT, _SEQUENCE, _SAMPLER)),
}
"""For `engine/device_selection.py` and `engine/graph_tensors.py`, which do without them if one is missing."""

OPTIONAL: Mapping[str, Signature] = {
    **SAMPLERS,
    "ggml_backend_tensor_get": (None, (_TENSOR, c_void_p, c_size_t, c_size_t)),
    "ggml_nbytes": (c_size_t, (_TENSOR,)),
    "ggml_backend_load_all_from_path": (None, (c_char_p,)),
    "ggml_backend_reg_count": (c_size_t, ()),
    "llama_model_quantize_default_params": (QuantizeParams, ()),
}
"""Some builds do not export them."""
