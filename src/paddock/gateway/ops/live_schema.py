"""The events of `GET /live`. web/src/api/live.ts declares the same types."""

from __future__ import annotations

from typing import Literal

import msgspec

from paddock.types import CacheReport, ModelKind


class LiveSlot(msgspec.Struct, kw_only=True):
    id: int
    state: Literal["idle", "prompt", "answer"]
    prompt_tokens: int
    prompt_done: int
    """The prompt tokens that have been processed, including cached ones."""
    cached_tokens: int
    answered_tokens: int
    drafted_tokens: int
    """Guessed tokens of the answer, and those of them that were accepted."""
    accepted_tokens: int
    key: str | None
    """The key of the request, if the viewer may see it."""


class LiveHistogram(msgspec.Struct):
    """Counts by upper bounds in seconds; the last count has no bound."""

    bounds: tuple[float, ...]
    counts: list[int]


class LiveTotals(msgspec.Struct, kw_only=True):
    """Counters, which never decrease."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    answered_tokens: int
    drafted_tokens: int
    """Guessed tokens, and those of them that were accepted. Of local workers."""
    accepted_tokens: int
    preemptions: int
    evictions: int


class LiveReplica(msgspec.Struct, kw_only=True):
    name: str
    kind: Literal["worker", "server", "ray"]
    """A local worker, a remote server, or a replica on a cluster."""
    place: str | None
    """The URL or the cluster node, if the viewer may see it."""
    state: Literal["unloaded", "loading", "ready", "down"]
    progress: float | None
    """The progress of a local worker's load, from 0 to 1."""
    reason: str | None
    """Why it is down, if that is known."""
    drained: bool
    excluded: str | None
    """Why it gets no deterministic requests."""
    running: int
    waiting: int
    slots: int
    """0: unknown."""
    prompt_tokens: int | None
    """Prompt tokens that it computed; None: unknown."""
    cached_tokens: int | None
    """Prompt tokens that it took from its cache; None: unknown."""
    answered_tokens: int
    """Of a remote server or a cluster, those that this server received."""


class LiveModel(msgspec.Struct, kw_only=True):
    id: str
    kind: ModelKind
    state: Literal["unloaded", "loading", "loaded", "failed"]
    progress: float | None
    """The progress of the load, from 0 to 1."""
    reason: str | None
    """Why the load failed."""
    broken: bool
    """Its file cannot be read."""
    pinned: bool
    context: int | None
    memory: int | None
    """Bytes that it uses, or an estimate if it is not loaded."""
    gpu_memory: int | None
    leaves_in: float | None
    """Seconds until the idle timeout unloads it."""
    slots: list[LiveSlot]
    """Of all its local workers."""
    waiting: int
    replicas: list[LiveReplica]
    """Empty if one worker serves it."""
    totals: LiveTotals
    first_token: LiveHistogram
    inter_token: LiveHistogram


class LiveMemory(msgspec.Struct, kw_only=True):
    limit: int | None
    used: int


class LiveState(msgspec.Struct, kw_only=True):
    time: float
    version: str
    memory: LiveMemory
    gpu_memory: LiveMemory
    models: list[LiveModel]
    has_batches: bool
    """Files and batches are in use. The page asks for them only then, since asking would create their folder."""


class LiveNode(msgspec.Struct, kw_only=True):
    """A span of tokens in the prefix tree."""

    id: int
    parent: int | None
    start: int
    """The number of tokens before it."""
    tokens: int
    hot: bool
    """In cells of a sequence."""
    stored: bool
    """In host memory."""
    slots: list[int]
    """The requests that use it now."""
    hits: int
    text: str | None
    """The start of its text, if the viewer may see it."""


class LiveCells(msgspec.Struct, kw_only=True):
    total: int
    used: int


class LiveStored(msgspec.Struct, kw_only=True):
    """Bytes."""

    limit: int
    used: int


class LiveTree(msgspec.Struct, kw_only=True):
    model: str
    time: float
    cells: LiveCells
    stored: LiveStored
    hits: int
    misses: int
    evictions: int
    nodes: list[LiveNode]
    omitted: int
    """The number of spans that were left out."""


class LivePrefix(msgspec.Struct, kw_only=True):
    """A part that the same prompts share."""

    id: int
    parent: int | None
    """The part before it."""
    start: int
    """The number of characters before it."""
    characters: int
    prompts: int
    """How many of the last prompts have it."""
    held: dict[str, float]
    """The replicas that likely have it cached, and which share of it."""
    text: str | None
    """Its beginning, if the viewer may see it."""


class LivePrefixes(msgspec.Struct, kw_only=True):
    model: str
    prefixes: list[LivePrefix]
    """Those of the last 24 different prompts, each after its parent."""


class LiveReport(msgspec.Struct, kw_only=True):
    """Why a prompt was or was not cached."""

    id: int
    """Later prompts have larger numbers."""
    key: str | None
    """The key of the request, if the viewer may see it."""
    report: CacheReport


class LiveReports(msgspec.Struct, kw_only=True):
    model: str
    reports: list[LiveReport]
    """The last prompts that the viewer may read, the newest last."""
