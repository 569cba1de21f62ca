"""The section `model_manager`: what is said for all models, for one, and for one replica of one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from paddock.config.cluster import PlacementSettings
from paddock.config.fields import (
    MOST_DRAFTED,
    MOST_REPLICAS,
    CacheType,
    Expanded,
    GpuLayers,
    Pooling,
    ScaledPath,
    Section,
    Size,
    checked_name,
    cores,
    template,
)

# Who says one of these of a model has said all of them.
_ALTERNATIVES = (frozenset({"chat_template", "chat_template_file"}), frozenset({"embedding", "reranking", "pooling"}))


class ModelSettings(Section):
    """How a model is opened and how long it stays: said for all models, and again for those that differ."""

    idle_timeout: float = Field(300, ge=0)
    load_timeout: float = Field(600, gt=0)
    silence_timeout: float = Field(30, gt=0)
    """Seconds without a sign of life from a worker that has something to do, after which it is ended."""
    hang_timeout: float = Field(600, gt=0)
    """The same for a worker that lives but does not finish a step."""
    n_ctx: int = Field(16384, ge=0)
    n_batch: int = Field(2048, ge=1)
    n_ubatch: int = Field(512, ge=1)
    n_gpu_layers: GpuLayers = -1
    """-1: all of them; auto: as many as fit the GPU's free memory when the model is loaded."""
    n_threads: int = Field(default_factory=lambda: min(8, cores()), ge=1)
    flash_attn: Literal["on", "off", "auto"] = "auto"
    cache_type_k: CacheType = "f16"
    cache_type_v: CacheType = "f16"
    parallel: int | None = Field(None, ge=1, le=255)
    """Requests that run at once; chosen from the machine unless given."""
    kv_unified: bool | None = None
    """One pool of cells for all requests, or an equal part for each; chosen by `parallel` unless given."""
    cont_batching: bool = True
    cache_ram: int | None = Field(None, ge=-1)
    """MiB of memory for prefixes that nobody runs on; -1: no limit; chosen from the machine unless given."""
    max_queue: int = Field(1024, ge=0)
    embedding: bool = False
    """Make vectors of texts, also with models that could generate."""
    reranking: bool = False
    """Judge how well documents answer a query."""
    pooling: Pooling | None = None
    """How vectors are pooled; as the model's file says unless given."""
    lora: list[Expanded] = []
    """Files of adapters that are loaded with the model; they are numbered from 0 on."""
    lora_scaled: list[ScaledPath] = []
    """More of them, each with a scale other than 1."""
    lora_init_without_apply: bool = False
    """None of them acts before somebody says so."""
    model_draft: Expanded | None = None
    """The file of a small model with the same vocabulary, which guesses what the large one will say. What is not
    absolute is meant from the models directory, where there is one.
    """
    n_gpu_layers_draft: int = Field(-1, ge=-1)
    """-1: all of them."""
    draft_max: int = Field(4, ge=0, le=MOST_DRAFTED)
    """The most tokens that it guesses ahead at once."""
    draft_min: int = Field(0, ge=0, le=MOST_DRAFTED)
    """Fewer are not worth checking."""
    draft_p_min: float = Field(0.75, ge=0, le=1)
    """It stops before a token that it thinks less likely than this."""
    deterministic: bool | None = None
    """The same seed gives the same bytes; on with one slot and without continuous batching, unless given."""
    chat_template: Annotated[str, AfterValidator(template)] | None = None
    """The text of a template, in place of the model's own."""
    chat_template_file: Expanded | None = None

    @property
    def is_deterministic(self) -> bool:
        """Whether all requests are computed so that the same seed gives the same bytes. One slot without continuous
        batching is how llama-server is asked for that (`--parallel 1 --no-cont-batching`), so it implies it.
        """
        if self.deterministic is not None:
            return self.deterministic
        return self.parallel == 1 and not self.cont_batching

    @property
    def adapters(self) -> list[tuple[Path, float]]:
        """In the order of their numbers, each with the scale it has at first."""
        given = [*((path, 1.0) for path in self.lora), *self.lora_scaled]
        return [(path, 0.0 if self.lora_init_without_apply else scale) for path, scale in given]


def _url(value: str) -> str:
    if not re.fullmatch(r"https?://[^/\s?#@]+(/[^\s?#]*)?", value):
        raise ValueError("the address of a server is expected, such as http://10.0.0.2:8080")
    return value.rstrip("/")


class ReplicaSettings(Section):
    """One of those that serve a model: a worker of this server's own or, with a `url`, a server elsewhere."""

    devices: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_,-]+$")] | None = None
    """The GPUs that its worker sees, by number or name, as in CUDA_VISIBLE_DEVICES."""
    n_threads: int | None = Field(None, ge=1)
    n_gpu_layers: int | None = Field(None, ge=-1)
    url: Annotated[str, AfterValidator(_url)] | None = None
    """Of a llama-server, a Paddock, or whatever else answers as they do."""
    api_key: str | None = Field(None, min_length=1, repr=False)
    model: str | None = None
    """What the model is called there; unless given, as here."""
    engine_version: str | None = None
    """What it runs, where it does not say so itself."""

    @model_validator(mode="after")
    def _consistent(self) -> ReplicaSettings:
        here, there = {"devices", "n_threads", "n_gpu_layers"}, {"api_key", "model", "engine_version"}
        wrong = (here if self.url is not None else there) & self.model_fields_set
        if wrong:
            only = "a worker of our own" if self.url is not None else "a server elsewhere, which needs a url"
            raise ValueError(f"{min(wrong)} is for {only}")
        return self


def _replicas(value: Any) -> Any:
    """A number of workers that are all alike is as good as their names."""
    if type(value) is int or (isinstance(value, str) and value.isdecimal()):
        if not 1 <= int(value) <= MOST_REPLICAS:
            raise ValueError(f"from 1 to {MOST_REPLICAS} replicas can be had by their number")
        return {str(number): {} for number in range(int(value))}
    return value


class NamedModel(ModelSettings):
    """What is said of one model. What is not said is as for all of them."""

    path: Expanded | None = None
    """Its file; unless given, the one of that name below the models directory."""
    aliases: list[str] = []
    pinned: bool = False
    """It stays loaded, however long it is idle."""
    preload: bool = False
    """It is loaded when the server starts."""
    replicas: Annotated[
        dict[Annotated[str, AfterValidator(checked_name)], ReplicaSettings], BeforeValidator(_replicas)
    ] = {}
    """By name, those that serve it together: a pool. A number is short for so many workers of our own."""
    cluster: PlacementSettings = PlacementSettings()
    """How `paddock cluster` spreads it over nodes."""


class ModelManagerSettings(ModelSettings):
    """Which models there are, and how each is opened."""

    models_directory: Expanded | None = None
    model: Expanded | None = None
    alias: list[str] = []
    default_model: str | None = None
    check_interval: float = Field(60, gt=0)
    """Seconds between two looks at whether a model has been idle for too long, at most."""
    memory_limit: Size | None = None
    """The most host memory that all models together may take."""
    gpu_memory_limit: Size | None = None
    check_memory: bool = True
    """Whether a model must fit into the memory that is really free."""
    models_max: int = Field(0, ge=0)
    """How many models may be loaded at once; 0: as many as fit."""
    min_residence: float = Field(5, ge=0)
    """Seconds that a model in use stays loaded, whoever waits for its place."""
    spare_worker: bool = True
    """Keep a process ready for the next load, while a model is not loaded: forty megabytes that save 0.4 s."""
    wait_timeout: float = Field(600, gt=0)
    """Seconds that a request waits for its model to be loaded."""
    models: dict[str, NamedModel] = {}
    """By name, those of which more is to be said than that there is a file."""

    def settings_for(self, name: str) -> NamedModel:
        """What holds for one model: what is said of it (`.gguf` optional), and for the rest what is said for all."""
        own = self.models.get(name) or self.models.get(f"{name}.gguf") or NamedModel()
        given = {key: getattr(own, key) for key in own.model_fields_set}
        general = {key: getattr(self, key) for key in ModelSettings.model_fields}
        for alternatives in _ALTERNATIVES:
            if alternatives & given.keys():
                general = {key: value for key, value in general.items() if key not in alternatives}
        return NamedModel.model_construct(**general | given)  # each value has been validated where it stands
