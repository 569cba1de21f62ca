"""The section `model_manager`: settings of all models, of one model, and of one replica."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from paddock.config.cluster import PlacementSettings
from paddock.config.devices import DeviceSettings
from paddock.config.draft import DraftSettings
from paddock.config.fields import (
    DEFAULT_MODEL,
    MOST_REPLICAS,
    Expanded,
    Flag,
    MetadataOverride,
    Names,
    ScaledPath,
    Section,
    Size,
    SizedFolder,
    checked_name,
    folder_and_size,
    idle_seconds,
    number_or_default,
    off_or_text,
    on_off_or_auto,
)
from paddock.config.media import MediaSettings
from paddock.config.threads import ThreadSettings
from paddock.normalizers import checked_normalizer
from paddock.types import (
    CacheType,
    FlashAttention,
    Pooling,
    RopeScaling,
    SandboxMode,
    check_template,
)

# If a model sets one of these, it inherits none of the others.
_ALTERNATIVES = (frozenset({"chat_template", "chat_template_file"}), frozenset({"embedding", "reranking", "pooling"}))


class ModelSettings(DeviceSettings, ThreadSettings, DraftSettings, MediaSettings):
    """How a model is loaded and how long it stays loaded."""

    idle_timeout: Annotated[
        float,
        Flag("--idle-timeout", metavar="SECONDS"),
        Flag("--sleep-idle-seconds", metavar="SECONDS", convert=idle_seconds),
    ] = Field(300, ge=0)
    """Seconds without a request after which the model is unloaded. 0: never."""
    autoload: Annotated[bool, Flag("--models-autoload/--no-models-autoload")] = True
    """Load the model for a request. If false, only `preload` and the routes that load a model do, a request for an
    unloaded model is a 400, and the model is not unloaded when idle unless `idle_timeout` is set."""
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
    """Context size in tokens, for all requests of the model together (see `kv_unified`). 0: the longest that the
    model supports: the trained length, or more with scaled positions (`rope_scale`)."""
    n_batch: Annotated[int, Flag("-b", "--batch-size")] = Field(2048, ge=1)
    """The most tokens in one step."""
    n_ubatch: Annotated[int, Flag("-ub", "--ubatch-size")] = Field(512, ge=1)
    """The most tokens that libllama computes in one pass. A larger value takes more memory."""
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
    swa_full: Annotated[bool, Flag("--swa-full")] = False
    """Keep the whole context in sliding-window layers too. If false, they keep the window of each sequence, which takes
    a fraction of the memory."""
    context_shift: Annotated[bool, Flag("--context-shift/--no-context-shift")] = False
    """Continue an answer whose context is full: drop tokens after the first `n_keep` and compute the others again. If
    false, the answer ends there. Not together with `deterministic`."""
    cont_batching: Annotated[bool, Flag("-cb/-nocb", "--cont-batching/--no-cont-batching")] = True
    """Compute several requests in one step. If false, requests run one after another."""
    cache_ram: Annotated[int | None, Flag("-cram", "--cache-ram", metavar="MIB")] = Field(None, ge=-1)
    """MiB of host memory for prompt prefixes that may be used again; all models share it. For one model: the most it
    gets. -1: no limit. By default an eighth of the memory of the machine or its control group, at most 8 GiB.
    """
    cache_disk: Annotated[
        SizedFolder | None, BeforeValidator(off_or_text), Flag("--cache-disk", metavar="DIR[:SIZE]")
    ] = None
    """Keep prompt prefixes in files of this folder too, such as `/var/cache/paddock:20G`. They survive an unload, a
    restart and a crash. Models and servers may share a folder; SIZE is for all its files. By default a tenth of the
    disk, at most 32 GiB. The folder is created with mode 700. false or off: none, for one model.
    """
    ctx_checkpoints: Annotated[int, Flag("-ctxcp", "--ctx-checkpoints", "--swa-checkpoints")] = Field(32, ge=0)
    """The most checkpoints of a sequence, for models with sliding-window or recurrent layers: positions where another
    prompt can continue it. They are part of `cache_ram`."""
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
    deterministic: Annotated[bool | None, Flag("--deterministic")] = None
    """The same request with the same seed gives the same bytes, alone or in a batch. Slower. By default true with
    `parallel` 1 and `cont_batching` false, unless `context_shift` is on. Otherwise false."""
    chat_template: Annotated[
        Annotated[str, AfterValidator(check_template)] | None,
        Flag("--chat-template", metavar="TEXT|NAME", convert=check_template),
    ] = None
    """The text of a Jinja chat template that replaces the model's own, or the name of a template of llama.cpp, such as
    llama3. Except for chatml, the named templates support no tools and no reasoning.
    """
    chat_template_file: Annotated[Expanded | None, Flag("--chat-template-file")] = None
    """The file of a Jinja chat template that replaces the model's own."""
    jinja: Annotated[bool, Flag("--jinja/--no-jinja")] = True
    """Render the chat template with Jinja. If false, llama.cpp recognises the template by its text and renders it
    itself, without tools and reasoning.
    """

    normalize: Annotated[
        list[Annotated[str, AfterValidator(checked_normalizer)]], Flag("--normalize", metavar="NAME,...")
    ] = []
    """Rules that drop or move changing text at the front of conversations, so that more of them is cached, such as
    `claude-code`. A request can name its own in `normalize`; a deterministic one must."""
    tags: Annotated[Names, Flag("--tags", metavar="TAG,...")] = []
    """Words that `/v1/models` shows with the model. They have no effect."""
    defaults: dict[str, Any] = {}
    """Values for requests that leave a field out, such as `{"temperature": 0.2, "max_tokens": 512}`. A model's own
    values are added to those of all models."""

    @property
    def is_deterministic(self) -> bool:
        """Whether the same seed gives the same bytes. As in llama-server, `-np 1 -nocb` implies it."""
        if self.deterministic is not None:
            return self.deterministic
        return self.parallel == 1 and not self.cont_batching and not self.context_shift

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
    aliases: Names = []
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
    alias: Annotated[Names, Flag("-a", "--alias", metavar="NAME,...")] = []
    """The name of `model`, then its aliases. The name of its file always works too."""
    default_model: Annotated[str | None, Flag("--default-model", metavar="NAME")] = None
    """The model for requests that name none."""
    lazy: Annotated[bool | None, Flag("--lazy")] = None
    """true: load a model at its first request. false: load it when the server starts; of several, `default_model`.
    null: a single model (`model`) is loaded at the start, the models of a directory at their first request.
    """
    preload: Annotated[list[str], Flag("--preload", metavar="NAME,...", bare=DEFAULT_MODEL)] = []
    """Names or patterns (`llama-*`) of the models to load when the server starts. `default`, or the flag without a
    name, is `default_model`."""
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

    @property
    def cache_folders(self) -> list[Path]:
        """The folders of prefixes on disk, of all models."""
        given = [self.cache_disk, *(model.cache_disk for model in self.models.values())]
        return list(dict.fromkeys(folder_and_size(text)[0] for text in given if text is not None))

    def settings_for(self, name: str) -> NamedModel:
        """The settings of one model (`.gguf` is optional), completed by those of all models."""
        own = self.models.get(name) or self.models.get(f"{name}.gguf") or NamedModel()
        given = {key: getattr(own, key) for key in own.model_fields_set}
        given["defaults"] = self.defaults | own.defaults
        if not given.get("autoload", self.autoload) and "idle_timeout" not in self.model_fields_set:
            given.setdefault("idle_timeout", 0)
        general = {key: getattr(self, key) for key in ModelSettings.model_fields}
        for alternatives in _ALTERNATIVES:
            if alternatives & given.keys():
                general = {key: value for key, value in general.items() if key not in alternatives}
        return NamedModel.model_construct(**general | given)  # all values are validated already
