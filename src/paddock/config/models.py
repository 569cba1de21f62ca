"""The section `model_manager`: settings of all models, of one model, and of one replica."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from paddock.config.cluster import PlacementSettings
from paddock.config.fields import (
    MOST_DRAFTED,
    MOST_LAYERS,
    MOST_REPLICAS,
    Expanded,
    Flag,
    GpuLayers,
    MetadataOverride,
    ScaledPath,
    Section,
    Share,
    Size,
    TensorOverride,
    at_slashes,
    checked_name,
    cores,
    idle_seconds,
    layers_from_text,
    number_or_default,
    on_off_or_auto,
    template,
)
from paddock.types import (
    CacheType,
    FlashAttention,
    LoadMode,
    Numa,
    Pooling,
    RopeScaling,
    SandboxMode,
    SplitMode,
)

# If a model sets one of these, it inherits none of the others.
_ALTERNATIVES = (frozenset({"chat_template", "chat_template_file"}), frozenset({"embedding", "reranking", "pooling"}))


class ModelSettings(Section):
    """How a model is loaded and how long it stays loaded."""

    idle_timeout: Annotated[
        float,
        Flag("--idle-timeout", metavar="SECONDS"),
        Flag("--sleep-idle-seconds", metavar="SECONDS", convert=idle_seconds),
    ] = Field(300, ge=0)
    """Seconds without a request after which the model is unloaded. 0: never."""
    load_timeout: float = Field(600, gt=0)
    """Seconds that loading may take before it fails."""
    silence_timeout: float = Field(30, gt=0)
    """Seconds that a busy worker may leave health checks unanswered before it is killed and restarted."""
    hang_timeout: float = Field(600, gt=0)
    """Seconds that one step of a worker may take before the worker is killed and restarted."""
    sandbox: Annotated[SandboxMode, Flag("--sandbox"), Flag("--no-sandbox", value="off")] = "auto"
    """Deny workers the network, other programs and other files (Landlock, seccomp). `auto`: the parts that
    the kernel supports; `required`: load no model if a part is missing; `off`: no sandbox."""
    n_ctx: Annotated[int, Flag("-c", "--ctx-size")] = Field(16384, ge=0)
    """Context size in tokens, for all requests of the model together (see `kv_unified`). 0: the trained length."""
    n_batch: Annotated[int, Flag("-b", "--batch-size")] = Field(2048, ge=1)
    """The most tokens in one step."""
    n_ubatch: Annotated[int, Flag("-ub", "--ubatch-size")] = Field(512, ge=1)
    """The most tokens that libllama computes in one pass. A larger value takes more memory."""
    n_gpu_layers: Annotated[
        GpuLayers, Flag("-ngl", "--ngl", "--gpu-layers", "--n-gpu-layers", convert=layers_from_text)
    ] = -1
    """Layers on the GPU. -1: all; `auto`: as many as fit the GPU's free memory when the model is loaded."""
    n_threads: Annotated[int, Flag("-t", "--threads", convert=number_or_default)] = Field(
        default_factory=lambda: min(8, cores()), ge=1
    )
    """CPU threads. By default the number of cores, at most 8."""
    n_threads_batch: Annotated[int | None, Flag("-tb", "--threads-batch", convert=number_or_default)] = Field(
        None, ge=1
    )
    """CPU threads for prompts. By default as `n_threads`."""
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
    numa: Annotated[Numa | None, Flag("--numa")] = None
    """Optimise for several NUMA nodes."""
    override_kv: Annotated[list[MetadataOverride], Flag("--override-kv", metavar="KEY=TYPE:VALUE,...")] = []
    """Values that replace those in the model's header, such as `tokenizer.ggml.add_bos_token=bool:false`."""
    rope_scaling: Annotated[RopeScaling | None, Flag("--rope-scaling")] = None
    """How positions are scaled. By default as the model's file says."""
    rope_scale: Annotated[float | None, Flag("--rope-scale")] = Field(None, gt=0)
    """The factor by which the context is extended."""
    rope_freq_scale: Annotated[float | None, Flag("--rope-freq-scale")] = Field(None, gt=0)
    """The inverse of `rope_scale`."""
    rope_freq_base: Annotated[float | None, Flag("--rope-freq-base")] = Field(None, gt=0)
    """The base frequency of positions. By default as the model's file says."""
    yarn_orig_ctx: Annotated[int | None, Flag("--yarn-orig-ctx")] = Field(None, ge=0)
    """The context that the model was trained for before YaRN. By default as the model's file says."""
    yarn_ext_factor: Annotated[float | None, Flag("--yarn-ext-factor")] = None
    """YaRN's mix of extrapolation; 0: interpolation only."""
    yarn_attn_factor: Annotated[float | None, Flag("--yarn-attn-factor")] = None
    """YaRN's scale of attention."""
    yarn_beta_slow: Annotated[float | None, Flag("--yarn-beta-slow")] = None
    """YaRN's high correction dimension."""
    yarn_beta_fast: Annotated[float | None, Flag("--yarn-beta-fast")] = None
    """YaRN's low correction dimension."""
    flash_attn: Annotated[
        FlashAttention, Flag("-fa", "--flash-attn", metavar="on|off|auto", bare="on", convert=on_off_or_auto)
    ] = "auto"
    """Flash attention."""
    cache_type_k: Annotated[CacheType, Flag("-ctk", "--cache-type-k")] = "f16"
    """The data type of cached keys."""
    cache_type_v: Annotated[CacheType, Flag("-ctv", "--cache-type-v")] = "f16"
    """The data type of cached values."""
    parallel: Annotated[int | None, Flag("-np", "--parallel", convert=number_or_default)] = Field(None, ge=1, le=255)
    """The most requests that run in parallel. By default four per core, from 4 to 64."""
    kv_unified: Annotated[bool | None, Flag("-kvu/-no-kvu", "--kv-unified/--no-kv-unified")] = None
    """true: all requests share one context; false: each slot has an equal part of it. By default true, unless
    `parallel` is set."""
    cont_batching: Annotated[bool, Flag("-cb/-nocb", "--cont-batching/--no-cont-batching")] = True
    """Compute several requests in one step. If false, requests run one after another."""
    cache_ram: Annotated[int | None, Flag("-cram", "--cache-ram", metavar="MIB")] = Field(None, ge=-1)
    """MiB of host memory for prompt prefixes that may be used again; all models share it. For one model: the most it
    gets. -1: no limit. By default an eighth of the memory of the machine or its control group, at most 8 GiB.
    """
    max_queue: Annotated[int, Flag("--max-queue")] = Field(1024, ge=0)
    """The most requests that may wait for the model; more get a 429."""
    embedding: Annotated[bool, Flag("--embedding", "--embeddings")] = False
    """Serve embeddings, also from a model that could generate text."""
    reranking: Annotated[bool, Flag("--reranking", "--rerank")] = False
    """Serve reranking."""
    pooling: Annotated[Pooling | None, Flag("--pooling")] = None
    """How the vectors of an input's tokens are pooled. By default as the model's file says."""
    lora: Annotated[list[Expanded], Flag("--lora", metavar="FILE,...")] = []
    """LoRA adapter files to load with the model. They are numbered from 0."""
    lora_scaled: Annotated[list[ScaledPath], Flag("--lora-scaled", metavar="FILE:SCALE,...")] = []
    """More adapters, each as `PATH:SCALE`. They are numbered after those of `lora`."""
    lora_init_without_apply: Annotated[bool, Flag("--lora-init-without-apply")] = False
    """Load the adapters with scale 0, so that none acts until `POST /lora-adapters` or a request sets its scale."""
    model_draft: Annotated[Expanded | None, Flag("-md", "--model-draft", "--spec-draft-model")] = None
    """The file of a small draft model with the same vocabulary, for speculative decoding. A relative path starts at
    `models_directory`, if that is set."""
    n_gpu_layers_draft: Annotated[
        int,
        Flag("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl", convert=layers_from_text),
    ] = Field(-1, ge=-1)
    """Layers of the draft model on the GPU. -1: all."""
    draft_max: Annotated[int, Flag("--draft-max", "--draft", "--draft-n", "--spec-draft-n-max")] = Field(
        4, ge=0, le=MOST_DRAFTED
    )
    """The most tokens to draft at once."""
    draft_min: Annotated[int, Flag("--draft-min", "--draft-n-min", "--spec-draft-n-min")] = Field(
        0, ge=0, le=MOST_DRAFTED
    )
    """Drafts of fewer tokens are not checked."""
    draft_p_min: Annotated[float, Flag("--draft-p-min", "--spec-draft-p-min", metavar="P")] = Field(0.75, ge=0, le=1)
    """The draft ends before a token whose probability in the draft model is lower than this."""
    deterministic: Annotated[bool | None, Flag("--deterministic")] = None
    """The same request with the same seed gives the same bytes, alone or in a batch. Slower. By default true with
    `parallel` 1 and `cont_batching` false, else false."""
    chat_template: Annotated[
        Annotated[str, AfterValidator(template)] | None, Flag("--chat-template", metavar="TEXT")
    ] = None
    """The text of a Jinja chat template that replaces the model's own."""
    chat_template_file: Annotated[Expanded | None, Flag("--chat-template-file")] = None
    """The file of a Jinja chat template that replaces the model's own."""

    defaults: dict[str, Any] = {}
    """Values for requests that leave a field out, such as `{"temperature": 0.2, "max_tokens": 512}`. A model's own
    values are added to those of all models."""

    @property
    def is_deterministic(self) -> bool:
        """Whether the same seed gives the same bytes. As in llama-server, `-np 1 -nocb` implies it."""
        if self.deterministic is not None:
            return self.deterministic
        return self.parallel == 1 and not self.cont_batching

    @model_validator(mode="after")
    def _one_rope_scale(self) -> ModelSettings:
        if self.rope_scale is not None and self.rope_freq_scale is not None:
            raise ValueError("rope_scale and rope_freq_scale are mutually exclusive: one is the inverse of the other")
        return self

    @property
    def adapters(self) -> list[tuple[Path, float]]:
        """In the order of their numbers, each with its initial scale."""
        given = [*((path, 1.0) for path in self.lora), *self.lora_scaled]
        return [(path, 0.0 if self.lora_init_without_apply else scale) for path, scale in given]


def _url(value: str) -> str:
    if not re.fullmatch(r"https?://[^/\s?#@]+(/[^\s?#]*)?", value):
        raise ValueError("expected the address of a server, such as http://10.0.0.2:8080")
    return value.rstrip("/")


class ReplicaSettings(Section):
    """One replica of a model: a worker process of this server or, with a `url`, another server."""

    devices: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_,-]+$")] | None = None
    """The GPUs that the worker may use, by number or name, as in CUDA_VISIBLE_DEVICES."""
    n_threads: int | None = Field(None, ge=1)
    """CPU threads of the worker. By default as for the model."""
    n_gpu_layers: int | None = Field(None, ge=-1)
    """Layers on the GPU; -1: all. By default as for the model."""
    url: Annotated[str, AfterValidator(_url)] | None = None
    """The address of another server: a llama-server, a Paddock, or one with a compatible API."""
    api_key: str | None = Field(None, min_length=1, repr=False)
    """The API key to send to that server."""
    model: str | None = None
    """The model's name on that server. By default the same as here."""
    engine_version: str | None = None
    """The engine version of that server, if it does not report one itself."""

    @model_validator(mode="after")
    def _consistent(self) -> ReplicaSettings:
        here, there = {"devices", "n_threads", "n_gpu_layers"}, {"api_key", "model", "engine_version"}
        wrong = (here if self.url is not None else there) & self.model_fields_set
        if wrong:
            kind = "a worker of this server, not for a url" if self.url is not None else "another server: set url too"
            raise ValueError(f"{min(wrong)} is for {kind}")
        return self


def _replicas(value: Any) -> Any:
    """A number stands for that many workers with default settings."""
    if type(value) is int:
        if not 1 <= value <= MOST_REPLICAS:
            raise ValueError(f"expected 1 to {MOST_REPLICAS} replicas, or an object of replicas by name")
        return {str(number): {} for number in range(value)}
    return value


class NamedModel(ModelSettings):
    """Settings of one model. Settings that are missing here have the value for all models."""

    path: Expanded | None = None
    """The model's file. By default the file of that name below `models_directory`."""
    aliases: list[str] = []
    """Other names of the model."""
    pinned: bool = False
    """Never unload the model, however long it is idle."""
    preload: bool = False
    """Load the model when the server starts."""
    replicas: Annotated[
        dict[Annotated[str, AfterValidator(checked_name)], ReplicaSettings], BeforeValidator(_replicas)
    ] = {}
    """The replicas that serve the model together, by name. A number is short for as many worker processes."""
    cluster: PlacementSettings = PlacementSettings()
    """How `paddock cluster` places the model on nodes."""


class ModelManagerSettings(ModelSettings):
    """Which models there are, how they are loaded, and how they share the machine."""

    model: Annotated[Expanded | None, Flag("-m", "--model")] = None
    """Serve this one GGUF file, under any name that a request gives."""
    models_directory: Annotated[Expanded | None, Flag("--models-dir", metavar="DIR")] = None
    """Serve every `.gguf` file below this folder."""
    alias: Annotated[list[str], Flag("-a", "--alias", metavar="NAME,...")] = []
    """The name of `model`, then its aliases. The name of its file always works too."""
    default_model: Annotated[str | None, Flag("--default-model", metavar="NAME")] = None
    """The model for requests that name none."""
    lazy: Annotated[bool | None, Flag("--lazy/--preload")] = None
    """true: load a model at its first request. false: load it when the server starts; of several, `default_model`.
    null: a single model (`model`) is loaded at the start, the models of a directory at their first request.
    """
    check_interval: float = Field(60, gt=0)
    """The most seconds between two checks for idle models."""
    watch_interval: float = Field(2, ge=0)
    """Seconds between two scans of `models_directory` for new, changed and removed files. 0: only a reload scans."""
    memory_limit: Annotated[Size | None, Flag("--memory-limit", metavar="SIZE", convert=str)] = None
    """The most host memory that all models together may take. Without it: what is free."""
    gpu_memory_limit: Size | None = None
    """The most GPU memory that all models together may take. Without it: what is free."""
    check_memory: bool = True
    """Refuse to load a model that does not fit into the memory that is free now."""
    models_max: Annotated[int, Flag("--models-max")] = Field(0, ge=0)
    """The most models that are loaded at once. 0: as many as fit."""
    min_residence: float = Field(5, ge=0)
    """The least seconds that a model stays loaded while another model waits for its memory."""
    spare_worker: bool = True
    """Keep an empty worker process ready for the next load. It takes 40 MB and saves 0.4 s."""
    wait_timeout: float = Field(600, gt=0)
    """Seconds that a request waits for its model to be loaded; after that it gets a 503."""
    models: dict[str, NamedModel] = {}
    """Settings of single models, by name."""

    def settings_for(self, name: str) -> NamedModel:
        """The settings of one model (`.gguf` is optional), completed by those of all models."""
        own = self.models.get(name) or self.models.get(f"{name}.gguf") or NamedModel()
        given = {key: getattr(own, key) for key in own.model_fields_set}
        given["defaults"] = self.defaults | own.defaults
        general = {key: getattr(self, key) for key in ModelSettings.model_fields}
        for alternatives in _ALTERNATIVES:
            if alternatives & given.keys():
                general = {key: value for key, value in general.items() if key not in alternatives}
        return NamedModel.model_construct(**general | given)  # all values are validated already
