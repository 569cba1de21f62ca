from __future__ import annotations

from typing import Any, Literal

import msgspec
from pydantic import Field

from paddock.fleet import LoadOptions
from paddock.gateway.http.fields import BodyFields, Fields
from paddock.types import CacheType, SandboxState


class NamedModel(BodyFields):
    model: str


class ChosenOptions(Fields):
    """Options of a load. Those that are absent are as the settings say."""

    n_ctx: int | None = Field(None, ge=0, le=1 << 30)
    """Context size in tokens; 0: the longest that the model supports."""
    n_gpu_layers: int | None = Field(None, ge=-1, le=1 << 30)
    """Layers on the GPU; -1: all."""
    parallel: int | None = Field(None, ge=1, le=255)
    """The most requests that run in parallel."""
    cache_type_k: CacheType | None = None
    cache_type_v: CacheType | None = None

    def chosen(self) -> LoadOptions:
        return LoadOptions(**self.model_dump())


class LoadRequest(NamedModel):
    options: ChosenOptions | None = None
    """If given, the model is loaded with these options until the next reload of the settings. `{}` restores those of
    the settings."""


class UnloadRequest(NamedModel):
    """`all` means every model."""

    wait: bool = True
    """Whether to answer when they are unloaded, or at once."""


class NamedReplica(NamedModel):
    replica: str


class DrainRequest(NamedReplica):
    wait: bool = True
    """Whether to answer when its running requests have ended, or at once."""


class Done(msgspec.Struct, kw_only=True):
    status: Literal["ok"] = "ok"
    models: list[str]
    """The models that were affected; after a reload, all models."""


class ReloadDone(Done, kw_only=True):
    changed: list[str]
    """Models that are new, removed or have other options."""
    restart_needed: list[str]
    """Changed settings that take effect at the next start."""


class ReplicaDone(msgspec.Struct, kw_only=True):
    status: Literal["ok"] = "ok"
    model: str
    replica: str
    drained: bool
    running: int
    """Its running requests."""


class ReplicaState(msgspec.Struct, kw_only=True):
    """One replica of a model."""

    name: str
    kind: Literal["worker", "server", "ray"]
    """A local worker, a remote server, or a replica on Ray."""
    health: Literal["ready", "unready", "down"]
    drained: bool
    excluded: str | None
    """Why it gets no deterministic requests: it differs from the other replicas."""
    url: str | None
    node: str | None
    """The id of its Ray node."""
    pid: int | None
    engine: str
    engine_version: str
    fingerprint: str | None
    running: int
    waiting: int
    slots: int
    failures: int
    failure: str | None
    retry_after: float


class ModelState(msgspec.Struct, kw_only=True):
    name: str
    state: Literal["unloaded", "loading", "loaded", "unloading"]
    progress: float
    """Of the load, from 0 to 1."""
    pinned: bool
    running: int
    waiting: int
    """Requests that wait for the load."""
    slots: int
    pid: int | None
    sandbox: SandboxState | None
    """The sandbox of its worker while it is loaded; of several workers the weakest."""
    memory: dict[str, int]
    """Bytes on each device: the larger of estimate and measurement, including cached prefixes in host memory."""
    prefix_memory: int
    """Bytes of cached prefixes that no request uses."""
    prefix_memory_limit: int
    """The limit of that: this model's share of `cache_ram`."""
    loaded_for: float
    """Seconds."""
    idle_for: float
    idle_timeout: float
    failures: int
    """Consecutive failures."""
    failure: str | None
    """The last failure."""
    retry_after: float
    """Seconds until it may be loaded again."""
    replicas: list[ReplicaState]
    """Empty if one worker serves it."""


class FleetState(msgspec.Struct, kw_only=True):
    uptime: float
    memory_limit: dict[str, int]
    """The limit of all models on each device in bytes, if set."""
    cache_ram: int
    """The limit of cached prefixes of all models in host memory, in bytes."""
    models: list[ModelState]


class ModelStatusData(msgspec.Struct, omit_defaults=True):
    status: str
    progress: dict[str, Any] | None = None
    problem: str | None = None
    """The failure because of which it is not loaded."""


class FileProgress(msgspec.Struct):
    done: int
    """Bytes."""
    total: int


class ModelEvent(msgspec.Struct):
    """llama-server's event about a state change of a model."""

    model: str
    event: Literal["model_status"]
    data: ModelStatusData


class DownloadProgress(msgspec.Struct):
    """llama-server's event about a running download, for admin keys."""

    model: str
    """The name of the download."""
    event: Literal["download_progress"]
    data: dict[str, FileProgress]
    """By the address of the file."""


class ChangeReason(msgspec.Struct, omit_defaults=True):
    error: str | None = None
    """Why a download has failed."""


class ModelsEvent(msgspec.Struct):
    """llama-server's other events about models, for admin keys."""

    model: str
    """`*` for all models."""
    event: Literal["download_finished", "download_failed", "model_remove", "models_reload"]
    data: ChangeReason
