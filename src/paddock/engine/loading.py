"""Loads models and adapters, and creates contexts, with libllama."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paddock.engine import library
from paddock.engine.devices import has_gpu_device
from paddock.engine.fingerprint import ENGINE
from paddock.engine.libllama import lib
from paddock.engine.libllama.structs import CACHE_TYPES, ProgressCallback
from paddock.engine.placement import place_context, place_model
from paddock.engine.rpc import add_rpc_servers
from paddock.engine.threads import attach_threads, prepare_thread
from paddock.engine.vocab import LlamaVocab
from paddock.errors import LibraryUnusable
from paddock.types import Adapters, EngineOptions, ModelInfo

_FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}


def load_model(path: Path, options: EngineOptions, on_progress: Callable[[float], None]) -> Any:
    add_rpc_servers(options.rpc)
    prepare_thread(options)
    params = lib.llama_model_default_params()
    params.n_gpu_layers = options.n_gpu_layers
    place_model(params, options)

    def report(progress: float, _data: Any) -> bool:
        on_progress(progress)
        return True

    callback = ProgressCallback(report)
    params.progress_callback = callback
    model = lib.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise library.load_failure(f"cannot load {path.name}")
    return model


def context_params(options: EngineOptions, *, n_ctx: int, n_batch: int, unified: bool) -> Any:
    params = lib.llama_context_default_params()
    params.n_ctx = n_ctx
    params.n_batch = n_batch
    params.n_ubatch = min(options.n_ubatch, n_batch)
    # With unified cells one more sequence costs nothing. It is the scratch sequence.
    params.n_seq_max = options.parallel + 1 if unified else options.parallel
    params.kv_unified = unified
    params.swa_full = options.swa_full
    params.n_threads = options.n_threads
    params.flash_attn_type = _FLASH_ATTENTION[options.flash_attn]
    params.type_k = CACHE_TYPES[options.cache_type_k]
    params.type_v = CACHE_TYPES[options.cache_type_v]
    params.no_perf = True
    place_context(params, options)
    return params


def new_context(model: Any, params: Any, options: EngineOptions) -> Any:
    context = lib.llama_init_from_model(model, params)
    if not context:
        raise library.load_failure(f"cannot create a context of {params.n_ctx} tokens")
    check_params(context, params)
    attach_threads(context, options)
    return context


def check_params(context: Any, params: Any) -> None:
    """The self-test of the library cannot tell apart neighbours with the same default, as some of the booleans have. So
    a context must also report what was asked for.
    """
    wanted, found = int(params.n_seq_max), int(lib.llama_n_seq_max(context))
    is_unified = lib.llama_n_ctx_seq(context) == lib.llama_n_ctx(context)
    if wanted != found or (wanted > 1 and is_unified != params.kv_unified):
        raise LibraryUnusable(
            f"{lib.path} (llama.cpp {lib.version}) reads its parameters from other places: n_seq_max {wanted} became "
            f"{found}, kv_unified {bool(params.kv_unified)} became {is_unified}"
        )


def model_info(model: Any, vocab: LlamaVocab, **more: Any) -> ModelInfo:
    """The metadata that all models have, and the given fields. `n_ctx_train` is one of them, since libllama changes its
    own value when a context scales positions.
    """
    buffer = ctypes.create_string_buffer(256)
    lib.llama_model_desc(model, buffer, len(buffer))
    return ModelInfo(
        description=buffer.value.decode("utf-8", "replace"),
        n_vocab=vocab.size,
        n_params=int(lib.llama_model_n_params(model)),
        size_bytes=int(lib.llama_model_size(model)),
        engine=ENGINE,
        library=library.info(),
        bos=vocab.bos,
        eos=vocab.eos,
        **more,
    )


def has_indivisible_state(model: Any) -> bool:
    """Whether the state of a sequence is more than keys and values by position, so that it cannot be cut."""
    return bool(lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model) or lib.llama_model_n_swa(model))


def original_context(model: Any) -> int:
    """The context that the model had before its positions were scaled; if it does not say, the trained one."""
    architecture = metadata(model, "general.architecture")
    original = metadata(model, f"{architecture}.rope.scaling.original_context_length")
    return int(original) if original.isdecimal() else int(lib.llama_model_n_ctx_train(model))


def metadata(model: Any, key: str) -> str:
    """Empty: the model does not have it."""
    value = ctypes.create_string_buffer(128)
    found = lib.llama_model_meta_val_str(model, key.encode(), value, len(value))
    return value.value.decode("utf-8", "replace") if found >= 0 else ""


def computes_on_cpu(model: Any, n_gpu_layers: int) -> bool:
    """Whether the CPU computes a part of each step."""
    layers, has_gpu = int(lib.llama_model_n_layer(model)), has_gpu_device()
    return needs_cpu(n_gpu_layers, layers, has_gpu=has_gpu)


def needs_cpu(n_gpu_layers: int, n_layers: int, *, has_gpu: bool) -> bool:
    """Whether a layer is on the CPU. libllama counts the output as one more layer. Negative: all are on the GPU."""
    return not has_gpu or 0 <= n_gpu_layers <= n_layers


def unusual_context(options: EngineOptions, trained: int, *, unified: bool) -> tuple[str, bool]:
    """The log line if the options allow a request more tokens than the model was trained for, else an empty one; and
    whether the request gets fewer. llama-server limits requests in the same way.
    """
    wanted, longest = options.n_ctx if unified else options.n_ctx // options.parallel, options.longest_context(trained)
    scaled = f", and its positions are scaled to {longest}" if longest > trained else ""
    allowed = f"n_ctx {options.n_ctx} allows {wanted} tokens in a request, but the model was trained for {trained}"
    allowed += scaled
    if wanted > longest:
        cure = "" if scaled else " (scale its positions with rope_scaling yarn and rope_scale for more)"
        return f"{allowed}: a request gets at most {longest}{cure}", True
    if wanted > trained:
        return f"{allowed}: answers may be worse than within {trained}", False
    return "", False


class LoadedAdapters:
    """LoRA adapters, which libllama frees with their model."""

    def __init__(self, model: Any, paths: Sequence[str]) -> None:
        self._pointers = [_load_adapter(model, path) for path in paths]

    @property
    def all(self) -> Adapters:
        return tuple((number, 1.0) for number in range(len(self._pointers)))

    def apply(self, context: Any, adapters: Adapters) -> None:
        """Make exactly these adapters active in the context."""
        count = len(adapters)
        pointers = (ctypes.c_void_p * count)(*(self._pointers[number] for number, _ in adapters))
        scales = (ctypes.c_float * count)(*(scale for _, scale in adapters))
        lib.llama_set_adapters_lora(context, pointers, count, scales)


def _load_adapter(model: Any, path: str) -> Any:
    pointer = lib.llama_adapter_lora_init(model, path.encode())
    if not pointer:
        raise library.load_failure(f"cannot load the adapter {path}")
    return pointer
