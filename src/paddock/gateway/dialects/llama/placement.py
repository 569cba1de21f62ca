"""Where a model is kept and computed, for `/props`."""

from __future__ import annotations

import msgspec

from paddock.fleet import Model
from paddock.types import EngineOptions, SplitMode


class PlacementProps(msgspec.Struct, kw_only=True):
    """Where a model is: as it was loaded, or as configured while it is not loaded. `is_fitted`: some of it is chosen at
    load time so that the model fits the free memory.
    """

    is_fitted: bool
    n_ctx: int
    n_gpu_layers: int
    """-1: all."""
    n_gpu_layers_draft: int | None
    """Null without a draft model."""
    split_mode: SplitMode
    tensor_split: list[float]
    main_gpu: int
    device: list[str]
    """Empty: all devices."""
    rpc: list[str]
    tensor_overrides: list[tuple[str, str]]
    """Patterns for names of tensors, each with a buffer type."""
    kv_offload: bool
    op_offload: bool
    n_threads: int
    n_threads_batch: int
    cpus: tuple[int, ...]
    """Empty: all CPUs."""


def placement_props(model: Model, options: EngineOptions) -> PlacementProps:
    return PlacementProps(
        is_fitted=model.freedom.is_any,
        n_gpu_layers_draft=options.n_gpu_layers_draft if options.model_draft else None,
        n_threads_batch=options.n_threads_batch or options.n_threads,
        **{
            name: getattr(options, name)
            for name in (
                *("n_ctx", "n_gpu_layers", "split_mode", "tensor_split", "main_gpu", "device", "rpc"),
                *("tensor_overrides", "kv_offload", "op_offload", "n_threads", "cpus"),
            )
        },
    )
