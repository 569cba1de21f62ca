"""Engine options and model metadata."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from paddock.types.prompts import MediaKind
from paddock.types.sampling import DraftParams

ModelKind = Literal["generation", "embedding", "reranking"]
FlashAttention = Literal["on", "off", "auto"]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]

SplitMode = Literal["none", "layer", "row", "tensor"]
LoadMode = Literal["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"]
Numa = Literal["distribute", "isolate", "numactl"]
RopeScaling = Literal["none", "linear", "yarn"]

Pooling = Literal["none", "mean", "cls", "last", "rank"]
"""How the vectors of an input's tokens are pooled: not at all, their mean, the first, the last, or a score from the
model's ranking head.
"""

EMBEDDING_POOLING: Final[Pooling] = "mean"
"""For embeddings of a model that generates text."""

StateFormatName = Literal["keys_values", "keys", "keys_values_positions", "keys_positions", "whole"]
"""What is copied for a token: keys and values, or only keys (MLA); also all positions of a cell with several (M-RoPE).
`whole`: the format is unknown or the state cannot be cut, so it is copied whole.
"""

Reuse = Literal["prefix", "checkpoint", "snapshot", "none"]
"""Which part of a cached sequence another request can use: any prefix, only the whole sequence, or nothing."""

Adapters = tuple[tuple[int, float], ...]
"""The active adapters of a model: number and scale, ordered by number. No scale is 0."""


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the engine needs to load a model.

    The settings declare these options, with defaults, limits and descriptions (`config/models.py`).
    `fleet/catalogue/options.py` makes the options from the settings, so no field has a default here.
    """

    n_ctx: int
    is_default_ctx: bool
    """`n_ctx` has the default value. A model with a shorter context is then no reason for a warning."""
    n_batch: int
    n_ubatch: int
    n_gpu_layers: int
    n_threads: int
    n_threads_batch: int | None
    cpus: tuple[int, ...]
    """The CPUs that the threads may use; empty: all."""
    cpus_batch: tuple[int, ...]
    """While prompts are computed."""
    cpu_strict: bool
    cpu_strict_batch: bool
    prio: int
    prio_batch: int
    poll: int | None
    tensor_split: list[float]
    split_mode: SplitMode
    main_gpu: int
    device: list[str]
    rpc: list[str]
    """The addresses of RPC servers, as HOST:PORT."""
    tensor_overrides: list[tuple[str, str]]
    """Regular expressions for names of tensors, each with a buffer type. The first that matches counts."""
    kv_offload: bool
    op_offload: bool
    load_mode: LoadMode
    lazy_mode: FlashAttention
    no_host: bool
    check_tensors: bool
    numa: Numa | None
    override_kv: list[tuple[str, bool | int | float | str]]
    rope_scaling: RopeScaling | None
    rope_freq_scale: float | None
    rope_freq_base: float | None
    yarn_orig_ctx: int | None
    yarn_ext_factor: float | None
    yarn_attn_factor: float | None
    yarn_beta_slow: float | None
    yarn_beta_fast: float | None
    parallel: int
    kv_unified: bool
    swa_full: bool
    """Sliding-window layers keep the whole context, and not only the window of each sequence."""
    context_shift: bool
    cont_batching: bool
    max_queue: int
    ctx_checkpoints: int
    """The most checkpoints of a sequence, for models with windowed or recurrent layers."""
    cache_ram_bytes: int
    """Host memory limit for idle prefixes, in bytes."""
    cache_disk: str
    """The folder of prefixes on disk; empty: none."""
    cache_disk_bytes: int
    """The most bytes of all files in it."""
    deterministic: bool
    flash_attn: FlashAttention
    cache_type_k: CacheType
    cache_type_v: CacheType
    repack: bool
    """Rearrange weights for the CPU's fastest instructions. False if these instructions do not work here."""
    pooling: Pooling | None
    """How to pool vectors. None: the model generates text."""
    chat_template: str
    """A template that replaces the model's own, or the name of a built-in one; empty: the model's own."""
    jinja: bool
    """Render the template with Jinja, unless it is the name of a built-in one."""
    adapters: tuple[str, ...]
    """Files of LoRA adapters to load with the model. Each request selects the active ones."""
    model_draft: str
    """The file of the draft model; empty: none."""
    n_gpu_layers_draft: int
    device_draft: list[str]
    tensor_overrides_draft: list[tuple[str, str]]
    cache_type_k_draft: CacheType | None
    cache_type_v_draft: CacheType | None
    draft: DraftParams
    max_rolled_back: int
    """The most tokens that recurrent states can be set back by. Each token takes one more copy of all states."""
    mmproj: str
    """The file of the multimodal projector; empty: none, so prompts are text only."""
    mmproj_auto: bool
    """It was found beside the model, so that the model is loaded without it if llama.cpp cannot use it."""
    mmproj_offload: bool
    image_min_tokens: int | None
    image_max_tokens: int | None
    devices: str
    """The GPUs that the process may use, as in CUDA_VISIBLE_DEVICES; empty: inherited."""
    verbose: bool

    def longest_context(self, trained: int) -> int:
        """The longest context of a request: more than the model was trained for if positions are scaled."""
        if self.rope_freq_scale is None or self.rope_scaling == "none":
            return trained
        return max(trained, int((self.yarn_orig_ctx or trained) / self.rope_freq_scale))

    def placed_as_draft(self) -> EngineOptions:
        """The same options with the placement of the draft model."""
        return msgspec.structs.replace(
            self,
            n_gpu_layers=self.n_gpu_layers_draft,
            device=self.device_draft or self.device,
            tensor_overrides=self.tensor_overrides_draft,
            cache_type_k=self.cache_type_k_draft or self.cache_type_k,
            cache_type_v=self.cache_type_v_draft or self.cache_type_v,
        )


class LibraryInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which libllama a worker uses."""

    version: str = ""
    """The release of llama.cpp."""
    commit: str = ""
    """Of llama.cpp; empty: unknown."""
    build_id: str = ""
    """Differs between any two builds."""
    compiler: str = ""
    features: tuple[str, ...] = ()
    """Instruction sets and other options of the build, by ggml's names."""
    origin: str = ""
    """Where it was found: a package, a variable or the system."""
    path: str = ""


class FileStamp(msgspec.Struct, frozen=True):
    """A file as it was when it was loaded. A file with the same stamp has the same content."""

    path: str
    size: int
    modified: int
    """Nanoseconds."""
    inode: int


class ModelInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Metadata of a loaded model."""

    description: str
    n_ctx: int
    n_ctx_train: int
    n_vocab: int
    n_params: int
    size_bytes: int
    n_slots: int = 1
    fingerprint: str = ""
    """Servers with the same fingerprint give the same bytes for the same seed."""
    engine: str = ""
    """The name and version of the engine."""
    chat_template: str = ""
    bos: str = ""
    eos: str = ""
    reuse: Reuse = "prefix"
    state_format: StateFormatName | None = None
    """None: nothing is copied."""
    n_cells: int = 0
    kv_unified: bool = True
    bytes_per_token: int = 0
    exact_batch: int = 1
    """The most deterministic answers that may share a step."""
    pooling: Pooling | None = None
    """None: the model generates text."""
    n_embd: int = 0
    """The number of dimensions of its vectors."""
    adapters: tuple[str, ...] = ()
    """The digest of each adapter's file, by the adapter's number."""
    library: LibraryInfo | None = None
    """None: this engine has none."""
    files: tuple[FileStamp, ...] = ()
    """Its files, in the order of their parts."""
    adapter_files: tuple[FileStamp, ...] = ()
    """By the adapter's number."""
    decisive: dict[str, Any] = {}
    """The effective options of the engine that decide the bytes of an answer, as JSON values."""
    sampler_profile: int = 0
    """The version of the samplers. Within one version the same seed gives the same tokens."""
    media: tuple[MediaKind, ...] = ()
    """What its prompts may contain besides text."""
    draft_slots: int = 0
    """The most concurrent answers for which the draft model proposes tokens; 0: no draft model is used."""
