"""Makes the options of the engine from the settings of a model."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from paddock.config import ModelSettings
from paddock.errors import StartupError
from paddock.fleet.memory.machine import host_memory_total
from paddock.types import DraftParams, EngineOptions

_SET_LATER: dict[str, Any] = {"pooling": None, "adapters": (), "model_draft": "", "devices": ""}
"""Options that depend on the model's files, or on the replica."""


def engine_options(settings: ModelSettings, *, verbose: bool) -> EngineOptions:
    """The options of a model, except those of a single replica.

    Raises `StartupError` if the chat template cannot be read.
    """
    shared = ModelSettings.model_fields.keys() & EngineOptions.__struct_fields__
    copied = {name: getattr(settings, name) for name in shared}
    return EngineOptions(**copied | _computed(settings) | _SET_LATER, verbose=verbose)


def _computed(settings: ModelSettings) -> dict[str, Any]:
    """The options that are not a copy of the setting with the same name."""
    return {
        "is_default_ctx": settings.n_ctx == ModelSettings.model_fields["n_ctx"].default,
        "n_gpu_layers": -1 if settings.n_gpu_layers == "auto" else settings.n_gpu_layers,
        "parallel": settings.parallel or _default_parallel(),
        "kv_unified": _is_unified(settings),
        "cache_ram_bytes": _cache_ram(settings.cache_ram),
        "deterministic": settings.is_deterministic,
        "chat_template": _chat_template(settings),
        "tensor_overrides": _tensor_overrides(settings),
        "rope_freq_scale": 1 / settings.rope_scale if settings.rope_scale is not None else settings.rope_freq_scale,
        "draft": DraftParams(settings.draft_max, settings.draft_min, settings.draft_p_min),
    }


def _tensor_overrides(settings: ModelSettings) -> list[tuple[str, str]]:
    """`override_tensor`, and the patterns that the options for host memory stand for, as in llama.cpp."""
    experts, dense = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps", r"\.ffn_(up|down|gate)\."
    found = list(settings.override_tensor)
    if settings.cpu_moe:
        found.append((experts, "CPU"))
    found += [(rf"blk\.{layer}{experts}", "CPU") for layer in range(settings.n_cpu_moe)]
    found += [(rf"blk\.{layer}{dense}", "CPU") for layer in range(settings.n_cpu_ffn)]
    return found


def _default_parallel() -> int:
    """Four per core, from 4 to 64. More requests at once do not raise the throughput."""
    return max(4, min(4 * (os.cpu_count() or 1), 64))


def _is_unified(settings: ModelSettings) -> bool:
    """As in llama-server, the context is split into equal parts if `parallel` is set, which is faster. Otherwise all
    requests share it. Deterministic answers need a part of their own.
    """
    if settings.kv_unified is not None:
        return settings.kv_unified
    return settings.parallel is None and not settings.is_deterministic


def total_cache_ram(mebibytes: int | None, per_model: Iterable[int | None]) -> int:
    """Bytes for all models together. By default at least as much as the settings of any one model ask for."""
    if mebibytes is not None:
        return _cache_ram(mebibytes)
    return max(map(_cache_ram, [None, *(limit for limit in per_model if limit is not None)]))


def _cache_ram(mebibytes: int | None) -> int:
    """By default an eighth of the memory, at most 8 GiB."""
    if mebibytes is None:
        return min(host_memory_total() // 8, 8 << 30)
    return 1 << 62 if mebibytes < 0 else mebibytes << 20


def _chat_template(settings: ModelSettings) -> str:
    """Reads the file now, so that a missing file is an error at start-up and a changed file is noticed by a reload."""
    file = settings.chat_template_file
    if file is None:
        return settings.chat_template or ""
    if settings.chat_template is not None:
        raise StartupError("chat_template and chat_template_file are mutually exclusive: set one of them")
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise StartupError(f"cannot read the chat template {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise StartupError(f"the chat template {file} is not UTF-8 text: byte {error.start}") from None
