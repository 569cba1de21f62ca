from __future__ import annotations

from typing import Any, Literal

import msgspec

from paddock.gateway.http.fields import BodyFields
from paddock.types import SandboxState


class NamedModel(BodyFields):
    model: str


class UnloadRequest(NamedModel):
    """`all` is every one of them."""

    wait: bool = True
    """Whether to answer when they are gone, rather than when they are on their way."""


class NamedReplica(BodyFields):
    model: str
    replica: str


class DrainRequest(NamedReplica):
    wait: bool = True
    """Whether to answer when it has finished what it has, rather than when it gets nothing new any more."""


class Done(msgspec.Struct, kw_only=True):
    status: Literal["ok"] = "ok"
    models: list[str]
    """Those that it was done to."""


class ReloadDone(msgspec.Struct, kw_only=True):
    status: Literal["ok"] = "ok"
    models: list[str]
    """All that can be asked for now."""
    changed: list[str]
    """Those of them that are new, gone or opened differently from now on."""
    restart_needed: list[str]
    """Settings that have changed and take effect with the next start only."""


class ReplicaDone(msgspec.Struct, kw_only=True):
    status: Literal["ok"] = "ok"
    model: str
    replica: str
    drained: bool
    running: int
    """Requests that it has still."""


class ReplicaState(msgspec.Struct, kw_only=True):
    """One of those that serve a model together."""

    name: str
    kind: Literal["worker", "server", "ray"]
    """A worker of this server's own, or a server elsewhere."""
    health: Literal["ready", "unready", "down"]
    drained: bool
    excluded: str | None
    """Why it is not asked for deterministic answers: it is not like the others."""
    url: str | None
    node: str | None
    """Of a cluster, by Ray's id."""
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
    """Of its loading."""
    pinned: bool
    running: int
    waiting: int
    """Requests that wait for it to be loaded."""
    slots: int
    pid: int | None
    sandbox: SandboxState | None
    """What its worker is kept from doing, while it is loaded; of several the one that is confined least."""
    memory: dict[str, int]
    """Bytes on each device: as estimated, or as measured where that is more, and with its prefixes in host memory."""
    prefix_memory: int
    """Bytes of that which prefixes take that nobody runs on."""
    prefix_memory_limit: int
    """Bytes that they may take: this model's share of `cache_ram`."""
    loaded_for: float
    """Seconds."""
    idle_for: float
    idle_timeout: float
    failures: int
    """In a row."""
    failure: str | None
    """The last of them."""
    retry_after: float
    """Seconds for which it is left alone after them."""
    replicas: list[ReplicaState]
    """Empty where one worker serves it."""


class FleetState(msgspec.Struct, kw_only=True):
    uptime: float
    memory_limit: dict[str, int]
    """Bytes on each device that all models together may take, where that is set."""
    cache_ram: int
    """Bytes of host memory that the prefixes of all models together may take."""
    models: list[ModelState]


class ModelStatusData(msgspec.Struct, omit_defaults=True):
    status: str
    progress: dict[str, Any] | None = None
    problem: str | None = None
    """How it failed, if that is why it is not there."""


class ModelEvent(msgspec.Struct):
    """llama-server's: something happened to a model."""

    model: str
    event: Literal["model_status"]
    data: ModelStatusData
