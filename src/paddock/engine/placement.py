"""Where libllama keeps and computes a model: devices, splits, tensor buffers and header overrides."""

from __future__ import annotations

import ctypes
from typing import Any

from paddock.engine.devices import accelerators, buffer_types
from paddock.engine.libllama import lib
from paddock.engine.libllama.structs import (
    LAZY_MODES,
    LOAD_MODES,
    NUMA_STRATEGIES,
    ROPE_SCALING_TYPES,
    SPLIT_MODES,
    MetadataOverride,
    TensorOverride,
)
from paddock.errors import ModelLoadFailed
from paddock.types import EngineOptions

_OVERRIDE_KINDS: dict[type, tuple[int, str]] = {
    int: (0, "val_i64"),
    float: (1, "val_f64"),
    bool: (2, "val_bool"),
    str: (3, "val_str"),
}


_referenced: list[Any] = []
"""What models point to. libllama copies the pointers, so it must live as long as they do."""


def place_model(params: Any, options: EngineOptions) -> None:
    """Set where the model goes.

    Raises `ModelLoadFailed` for a device or a buffer type that does not exist here.
    """
    params.split_mode = SPLIT_MODES[options.split_mode]
    params.main_gpu = options.main_gpu
    params.load_mode = LOAD_MODES[options.load_mode]
    params.lazy_mode = LAZY_MODES[options.lazy_mode]
    params.use_extra_bufts = options.repack
    params.no_host = options.no_host
    params.check_tensors = options.check_tensors
    if options.tensor_split:
        shares = (ctypes.c_float * int(lib.llama_max_devices()))(*options.tensor_split)
        params.tensor_split = shares
        _referenced.append(shares)
    if options.device:
        devices = _devices(options.device)
        params.devices = ctypes.cast(devices, ctypes.c_void_p)
        _referenced.append(devices)
    if options.tensor_overrides:
        overrides = _tensor_overrides(options.tensor_overrides)
        params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
        _referenced.append(overrides)
    if options.override_kv:
        metadata = _metadata_overrides(options.override_kv)
        params.kv_overrides = ctypes.cast(metadata, ctypes.c_void_p)
        _referenced.append(metadata)


def place_context(params: Any, options: EngineOptions) -> None:
    """Set where the cache goes, and how positions are scaled."""
    params.n_threads_batch = options.n_threads_batch or options.n_threads
    params.offload_kqv = options.kv_offload
    params.op_offload = options.op_offload
    if options.rope_scaling is not None:
        params.rope_scaling_type = ROPE_SCALING_TYPES[options.rope_scaling]
    for name in (
        *("rope_freq_scale", "rope_freq_base", "yarn_orig_ctx", "yarn_ext_factor"),
        *("yarn_attn_factor", "yarn_beta_slow", "yarn_beta_fast"),
    ):
        value = getattr(options, name)
        if value is not None:
            setattr(params, name, value)


def optimise_for_numa(options: EngineOptions) -> None:
    if options.numa is not None:
        lib.llama_numa_init(NUMA_STRATEGIES[options.numa])


def _devices(names: list[str]) -> Any:
    """A list of devices that ends with null. `none` is an empty list: nothing is offloaded."""
    if names == ["none"]:
        names = []
    known = accelerators()
    for name in names:
        if name not in known:
            raise ModelLoadFailed(f"there is no device {name!r}; there are: {', '.join(known) or 'none'}")
    found = [known[name] for name in names]
    return (ctypes.c_void_p * (len(found) + 1))(*found, None)


def _tensor_overrides(overrides: list[tuple[str, str]]) -> Any:
    """A list that ends with a null pattern."""
    buffers = buffer_types()
    unknown = [buffer for _, buffer in overrides if buffer not in buffers]
    if unknown:
        raise ModelLoadFailed(
            f"override_tensor: there is no buffer type {unknown[0]!r}; there are: {', '.join(buffers)}"
        )
    rows = [TensorOverride(pattern.encode(), buffers[buffer]) for pattern, buffer in overrides]
    return (TensorOverride * (len(rows) + 1))(*rows)


def _metadata_overrides(overrides: list[tuple[str, Any]]) -> Any:
    """A list that ends with an empty key."""
    rows = (MetadataOverride * (len(overrides) + 1))()
    for row, (key, value) in zip(rows, overrides, strict=False):
        row.tag, field = _OVERRIDE_KINDS[type(value)]
        row.key = key.encode()
        setattr(row.value, field, value.encode() if isinstance(value, str) else value)
    return rows
