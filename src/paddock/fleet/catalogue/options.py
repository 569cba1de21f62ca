"""From what is set for a model to what the engine is given."""

from __future__ import annotations

import os
from collections.abc import Iterable

from paddock.config import ModelSettings
from paddock.errors import StartupError
from paddock.fleet.memory.machine import host_memory_total
from paddock.types import DraftParams, EngineOptions


def engine_options(settings: ModelSettings, *, verbose: bool) -> EngineOptions:
    """Raises `StartupError` for a template that cannot be had."""
    return EngineOptions(
        n_ctx=settings.n_ctx,
        n_batch=settings.n_batch,
        n_ubatch=settings.n_ubatch,
        n_gpu_layers=-1 if settings.n_gpu_layers == "auto" else settings.n_gpu_layers,
        n_threads=settings.n_threads,
        flash_attn=settings.flash_attn,
        cache_type_k=settings.cache_type_k,
        cache_type_v=settings.cache_type_v,
        parallel=settings.parallel or _default_parallel(),
        kv_unified=_unified(settings),
        continuous_batching=settings.cont_batching,
        max_queue=settings.max_queue,
        cache_ram_bytes=_cache_ram(settings.cache_ram),
        deterministic=settings.is_deterministic,
        chat_template=_chat_template(settings),
        n_gpu_layers_draft=settings.n_gpu_layers_draft,
        draft=DraftParams(settings.draft_max, settings.draft_min, settings.draft_p_min),
        verbose=verbose,
    )


def _default_parallel() -> int:
    """Four to a core: more only take turns, and a request that waits costs nobody anything."""
    return max(4, min(4 * (os.cpu_count() or 1), 64))


def _unified(settings: ModelSettings) -> bool:
    """As llama-server has it: whoever says how many run at once gets a part of the context for each, which is faster;
    otherwise all share the whole of it. Only with a part of its own is an answer the same whoever else is there.
    """
    if settings.kv_unified is not None:
        return settings.kv_unified
    return settings.parallel is None and not settings.is_deterministic


def total_cache_ram(mebibytes: int | None, of_models: Iterable[int | None]) -> int:
    """Bytes for all models together: as set, or else at least what any of them is said to have."""
    if mebibytes is not None:
        return _cache_ram(mebibytes)
    return max(map(_cache_ram, [None, *(said for said in of_models if said is not None)]))


def _cache_ram(mebibytes: int | None) -> int:
    """An eighth of the memory there is, as far as 8 GiB, unless told."""
    if mebibytes is None:
        return min(host_memory_total() // 8, 8 << 30)
    return 1 << 62 if mebibytes < 0 else mebibytes << 20


def _chat_template(settings: ModelSettings) -> str:
    """Read here, so that a file that is missing or has changed is noticed when the settings are read."""
    file = settings.chat_template_file
    if file is None:
        return settings.chat_template or ""
    if settings.chat_template is not None:
        raise StartupError("chat_template and chat_template_file exclude each other")
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise StartupError(f"cannot read the chat template {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise StartupError(f"the chat template {file} is not UTF-8 text: byte {error.start}") from None
