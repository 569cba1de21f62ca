"""Makes the options of the engine from the settings of a model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from typing import Any

from paddock.config import MOST_DRAFTED, ModelSettings
from paddock.config.fields import cpus_of_mask, cpus_of_range, folder_and_size
from paddock.errors import StartupError
from paddock.fleet.catalogue.tensor_overrides import DENSE, EXPERTS, of_first_layers
from paddock.fleet.memory.fit import Freedom
from paddock.fleet.memory.machine import host_memory_total
from paddock.types import DraftParams, EngineOptions

_SET_LATER: dict[str, Any] = {"pooling": None, "adapters": (), "model_draft": "", "mmproj": "", "devices": ""}
"""Options that depend on the model's files, or on the replica."""
# As many tokens as a draft model drafts by default. Each takes memory, which `memory/estimate.py` limits.
_MOST_ROLLED_BACK = 4


def engine_options(settings: ModelSettings, *, verbose: bool) -> EngineOptions:
    """The options of a model, except those of a single replica.

    Raises `StartupError` if settings exclude each other or the chat template cannot be read.
    """
    if settings.context_shift and settings.is_deterministic:
        raise StartupError(
            "context_shift (--context-shift) and deterministic (--deterministic) are mutually exclusive: after a shift "
            "the rest of the answer is computed in other batches"
        )
    if settings.cache_disk is not None and settings.cache_ram == 0:
        raise StartupError(
            "cache_disk (--cache-disk) needs host memory, through which prefixes go to the disk and back, but "
            "cache_ram (--cache-ram) is 0"
        )
    shared = ModelSettings.model_fields.keys() & EngineOptions.__struct_fields__
    copied = {name: getattr(settings, name) for name in shared}
    return EngineOptions(**copied | _computed(settings) | _SET_LATER, verbose=verbose)


def _computed(settings: ModelSettings) -> dict[str, Any]:
    """The options that are not a copy of the setting with the same name."""
    return {
        "is_default_ctx": _is_default_ctx(settings),
        "n_gpu_layers": _number(settings.n_gpu_layers),
        "n_gpu_layers_draft": _number(settings.n_gpu_layers_draft),
        **_threads(settings),
        "parallel": settings.parallel or _default_parallel(),
        "kv_unified": _is_unified(settings),
        "cache_ram_bytes": _cache_ram(settings.cache_ram),
        **_cache_disk(settings.cache_disk),
        "deterministic": settings.is_deterministic,
        "chat_template": _chat_template(settings),
        "tensor_overrides": [*_tensor_overrides(settings), *of_first_layers(DENSE, settings.n_cpu_ffn)],
        "tensor_overrides_draft": _tensor_overrides(settings, "_draft"),
        "rope_freq_scale": 1 / settings.rope_scale if settings.rope_scale is not None else settings.rope_freq_scale,
        "max_rolled_back": _MOST_ROLLED_BACK if _keeps_states(settings) else 0,
        "draft": DraftParams(
            settings.draft_max,
            settings.draft_min,
            settings.draft_p_min,
            lookup=min(settings.ngram_max, MOST_DRAFTED),
            priced=True,
        ).limited(settings.spec_type),
    }


def _keeps_states(settings: ModelSettings) -> bool:
    """Whether earlier recurrent states are kept, so that guesses can be removed. They take memory, and it was not
    measured whether steps without guesses take longer: so only if guesses were asked for.
    """
    is_asked_for = settings.spec_type in ("ngram", "draft") or (settings.spec_type == "auto" and settings.model_draft)
    return bool(is_asked_for) and not settings.is_deterministic


def _number(layers: int | str) -> int:
    return layers if isinstance(layers, int) else -1


def freedom_of(settings: ModelSettings, *, is_single: bool) -> Freedom:
    """What may be chosen so that the model fits the free memory: what the settings leave open. As in llama-server a
    single model is fitted by default. One of several uses the whole memory, and idle models make room for it.
    """
    is_fitted = settings.fit if settings.fit is not None else is_single or settings.n_gpu_layers == "auto"
    if not is_fitted or settings.rpc:  # the memory of RPC servers is not known
        return Freedom()
    layers = settings.n_gpu_layers in ("auto", -1) and settings.split_mode != "tensor"
    placed = settings.override_tensor or settings.cpu_moe or settings.n_cpu_moe or settings.n_cpu_ffn
    return Freedom(
        layers=layers,
        experts=layers and not placed,
        draft_layers=settings.n_gpu_layers_draft in ("auto", -1),
        context=_is_default_ctx(settings) and (is_single or settings.fit is True),
        least_context=settings.fit_ctx,
        margin=int(sum(settings.fit_target)) << 20 if settings.fit_target else None,
    )


def _is_default_ctx(settings: ModelSettings) -> bool:
    return bool(settings.n_ctx == ModelSettings.model_fields["n_ctx"].default)


def _threads(settings: ModelSettings) -> dict[str, Any]:
    cpus = _cpus(settings.cpu_mask, settings.cpu_range)
    batch = _cpus(settings.cpu_mask_batch, settings.cpu_range_batch) or cpus
    n_batch = settings.n_threads_batch or (settings.n_threads if batch != cpus else None)
    return {
        "cpus": cpus,
        "cpus_batch": batch,
        # More threads than CPUs would wait for each other.
        "n_threads": min(settings.n_threads, len(cpus) or settings.n_threads),
        "n_threads_batch": min(n_batch, len(batch)) if n_batch is not None and batch else n_batch,
        "cpu_strict_batch": settings.cpu_strict if settings.cpu_strict_batch is None else settings.cpu_strict_batch,
        "prio_batch": settings.prio if settings.prio_batch is None else settings.prio_batch,
    }


def _cpus(mask: str | None, span: str | None) -> tuple[int, ...]:
    """The CPUs of a mask and of a range that this process may use. Raises `StartupError` if there is none."""
    wanted = (cpus_of_mask(mask) if mask else set()) | (cpus_of_range(span) if span else set())
    if not wanted:
        return ()
    here = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if not wanted & here:
        given = " and ".join(text for text in (mask, span) if text)
        usable = ", ".join(map(str, sorted(here))) or "none, since this system cannot bind threads"
        raise StartupError(f"cpu_mask, cpu_range: {given} has no CPU that this process may use ({usable})")
    return tuple(sorted(wanted & here))


def _tensor_overrides(settings: ModelSettings, of: str = "") -> list[tuple[str, str]]:
    """`override_tensor`, and the patterns that the options for experts stand for. `of` is `_draft` for those of the
    draft model.
    """
    found: list[tuple[str, str]] = list(getattr(settings, f"override_tensor{of}"))
    if getattr(settings, f"cpu_moe{of}"):
        found.append((EXPERTS, "CPU"))
    return found + of_first_layers(EXPERTS, getattr(settings, f"n_cpu_moe{of}"))


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


def _cache_disk(setting: str | None) -> dict[str, Any]:
    """By default a tenth of the disk, at most 32 GiB."""
    if setting is None:
        return {"cache_disk": "", "cache_disk_bytes": 0}
    folder, size = folder_and_size(setting)
    folder = folder.absolute()
    if size is None:
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        size = min(shutil.disk_usage(existing).total // 10, 32 << 30)
    return {"cache_disk": str(folder), "cache_disk_bytes": size}


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
