"""Settings of a model: on which devices its weights are, and how they get there."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from paddock.config.fields import (
    MOST_LAYERS,
    Flag,
    GpuLayers,
    RpcServer,
    Section,
    Share,
    TensorOverride,
    at_slashes,
    layers_from_text,
    on_off_or_auto,
    on_or_off,
)
from paddock.types import FlashAttention, LoadMode, SplitMode


class DeviceSettings(Section):
    """Where the weights and the cache of a model are."""

    n_gpu_layers: Annotated[
        GpuLayers, Flag("-ngl", "--ngl", "--gpu-layers", "--n-gpu-layers", convert=layers_from_text)
    ] = -1
    """Layers on the GPU. -1 or `all`: all; `auto`: as many as fit the GPU's free memory when the model is loaded."""
    fit: Annotated[bool | None, Flag("-fit", "--fit", metavar="on|off", convert=on_or_off)] = None
    """Choose what is not set so that the model fits the free memory when it is loaded: layers on the GPU
    (`n_gpu_layers`), then experts in host memory, then a smaller context (`n_ctx`). By default true for a single model
    (`model`), and for a model with `n_gpu_layers: auto`, whose context stays as it is."""
    fit_target: Annotated[list[Share], BeforeValidator(at_slashes), Flag("-fitt", "--fit-target", metavar="N,...")] = []
    """MiB of GPU memory that `fit` leaves free; the values of several GPUs are added. By default 5 %, at least 512."""
    fit_ctx: Annotated[int, Flag("-fitc", "--fit-ctx")] = Field(4096, ge=1)
    """The smallest context of a request that `fit` chooses."""
    tensor_split: Annotated[
        list[Share], BeforeValidator(at_slashes), Flag("-ts", "--tensor-split", metavar="N,...")
    ] = []
    """The share of the model on each GPU, such as 3,1."""
    split_mode: Annotated[SplitMode, Flag("-sm", "--split-mode")] = "layer"
    """How several GPUs share the model: by layers, by rows, by tensors, or `none` for one GPU."""
    main_gpu: Annotated[int, Flag("-mg", "--main-gpu")] = Field(0, ge=0)
    """The GPU of the whole model (`split_mode` none) or of intermediate results (`split_mode` row)."""
    device: Annotated[list[str], Flag("-dev", "--device", metavar="NAME,...")] = []
    """The devices to use, by libllama's names, such as CUDA0. `none`: no GPU."""
    rpc: Annotated[list[RpcServer], Flag("--rpc", metavar="HOST:PORT,...")] = []
    """RPC servers of llama.cpp on other machines, whose devices are used too. Their connections are neither encrypted
    nor authenticated."""
    override_tensor: Annotated[
        list[TensorOverride], Flag("-ot", "--override-tensor", metavar="PATTERN=BUFFER,...")
    ] = []
    """Where tensors are kept: a regular expression for names, `=`, and a buffer type, such as `exps=CPU`."""
    cpu_moe: Annotated[bool, Flag("-cmoe", "--cpu-moe")] = False
    """Keep the weights of all experts in host memory."""
    n_cpu_moe: Annotated[int, Flag("-ncmoe", "--n-cpu-moe")] = Field(0, ge=0, le=MOST_LAYERS)
    """Keep the weights of the experts of the first layers in host memory."""
    n_cpu_ffn: Annotated[int, Flag("-ncffn", "--n-cpu-ffn")] = Field(0, ge=0, le=MOST_LAYERS)
    """Keep the dense feed-forward weights of the first layers in host memory."""
    kv_offload: Annotated[bool, Flag("-kvo/-nkvo", "--kv-offload/--no-kv-offload")] = True
    """Keep the KV cache of layers on the GPU there. If false, all of it is in host memory."""
    op_offload: Annotated[bool, Flag("--op-offload/--no-op-offload")] = True
    """Compute large operations on host tensors on the GPU."""
    load_mode: Annotated[
        LoadMode,
        Flag("-lm", "--load-mode"),
        Flag("--mlock", value="mlock"),
        Flag("--mmap", value="mmap"),
        Flag("--no-mmap", value="none"),
        Flag("-dio", "--direct-io", value="dio"),
    ] = "auto"
    """How the file is read: mapped (mmap), locked in memory (mlock), both, with direct I/O (dio), or plainly (none)."""
    lazy_mode: Annotated[FlashAttention, Flag("-lzm", "--lazy-mode", metavar="on|off|auto", convert=on_off_or_auto)] = (
        "auto"
    )
    """Read the rows of certain large tensors from the disk when they are needed."""
    repack: Annotated[bool, Flag("--repack/--no-repack", " /-nr")] = True
    """Rearrange weights for the CPU's fastest instructions."""
    no_host: Annotated[bool, Flag("--no-host")] = False
    """Do not use pinned host memory of the GPU's driver for weights."""
    check_tensors: Annotated[bool, Flag("--check-tensors")] = False
    """Check the weights for invalid values while loading."""
