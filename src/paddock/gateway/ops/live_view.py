"""`GET /live`: what the server is doing, as events, for the web page. It loads no model and resets no idle timer.

web/src/api/live.ts declares the same types.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Literal, NamedTuple

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from paddock import __version__
from paddock.batches import Batches
from paddock.fleet import Fleet, FleetSnapshot, ModelRecord, ModelSnapshot, ModelStatus
from paddock.gateway.auth.caller import Caller, caller_of
from paddock.gateway.auth.gate import Gate
from paddock.gateway.http.event_stream import EventStream
from paddock.gateway.http.framing import SSE
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import struct_from
from paddock.types import CacheReport, ModelKind, ReportView, SlotView, SpanView, TreeView

_encode = msgspec.json.Encoder().encode


class LiveSlot(msgspec.Struct, kw_only=True):
    id: int
    state: Literal["idle", "prompt", "answer"]
    prompt_tokens: int
    prompt_done: int
    """The prompt tokens that have been processed, including cached ones."""
    cached_tokens: int
    answered_tokens: int
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
    preemptions: int
    evictions: int


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
    waiting: int
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


class _Seen(NamedTuple):
    """The tree and the counters that were sent last."""

    tree: TreeView
    hits: int
    misses: int
    evictions: int


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


def live_routes(fleet: Fleet, gate: Gate, batches: Batches | None = None) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/live", **describe(events=(LiveState, LiveTree, LiveReports), named=True))
    async def live(request: Request) -> Response:
        """What the server is doing, as a stream without end: `state` at once and each second, and for each loaded model
        its prefix tree (`tree`) and why its last prompts were not cached (`reports`), at once and when they have
        changed. Loads no model and resets no idle timer.
        """
        fleet.live_feed.refuse_if_full()
        return EventStream(_events(fleet, gate, batches, caller_of(request)))

    return router


async def _events(fleet: Fleet, gate: Gate, batches: Batches | None, caller: Caller) -> AsyncGenerator[bytes]:
    shown: dict[str, _Seen] = {}
    reported: dict[str, Sequence[ReportView]] = {}
    async with aclosing(fleet.live_feed.snapshots()) as snapshots:
        async for snapshot in snapshots:
            if not gate.still_admits(caller):
                return
            models = [model for model in snapshot.models if caller.may_use(model.status.model)]
            has_batches = batches is not None and batches.runner is not None
            yield SSE.event(_encode(_state(snapshot, models, caller, has_batches)), "state")
            for model in models:
                name, tally = model.status.model.name, (model.record or ModelRecord()).tally
                if model.reports and reported.get(name) is not model.reports:
                    reported[name] = model.reports
                    yield SSE.event(_encode(_reports(name, model.reports, caller)), "reports")
                if model.tree is None:
                    continue
                seen = _Seen(model.tree, tally.cache_hits, tally.cache_misses, tally.evictions)
                if shown.get(name) != seen:
                    shown[name] = seen
                    yield SSE.event(_encode(_tree(snapshot, name, seen, caller)), "tree")


# ── snapshots ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _state(snapshot: FleetSnapshot, models: Iterable[ModelSnapshot], caller: Caller, has_batches: bool) -> LiveState:
    return LiveState(
        time=round(snapshot.time, 3),
        version=__version__,
        memory=_memory(snapshot, "host"),
        gpu_memory=_memory(snapshot, "gpu"),
        models=[_model(model, caller) for model in models],
        has_batches=has_batches,
    )


def _memory(snapshot: FleetSnapshot, device: str) -> LiveMemory:
    """The memory that all models use, also those that the caller may not use."""
    running = [model.status for model in snapshot.models if model.status.state != "unloaded"]
    return LiveMemory(
        limit=snapshot.memory_limit.get(device), used=sum(status.needs.get(device, 0) for status in running)
    )


def _model(model: ModelSnapshot, caller: Caller) -> LiveModel:
    status, view, record = model.status, model.view, model.record or ModelRecord()
    reason = (status.failure or model.facts.problem) if status.state == "unloaded" else None
    needs = status.needs or model.facts.needs
    return LiveModel(
        id=status.model.name,
        kind=model.facts.kind or "generation",
        # A model counts as loaded until it is unloaded.
        state="failed" if reason else "loaded" if status.state == "unloading" else status.state,
        progress=status.progress if status.state == "loading" else None,
        reason=reason,
        broken=status.state == "unloaded" and not status.failure and model.facts.problem is not None,
        pinned=status.model.settings.pinned,
        context=model.info.n_ctx if model.info is not None else None,
        memory=needs.get("host"),
        gpu_memory=needs.get("gpu"),
        leaves_in=_leaves_in(status),
        slots=[_slot(slot, caller) for slot in (view.slots if view is not None else [])],
        waiting=status.waiting + (view.queued if view is not None else status.levels.queued),
        totals=_totals(record),
        first_token=struct_from(LiveHistogram, record.first_token_seconds),
        inter_token=struct_from(LiveHistogram, record.tally.inter_token_seconds),
    )


def _leaves_in(status: ModelStatus) -> float | None:
    """None for a model that is pinned or in use."""
    settings = status.model.settings
    if status.state != "loaded" or settings.pinned or not status.idle_timeout or not status.idle_for:
        return None
    return round(max(status.idle_timeout - status.idle_for, 0), 1)


def _slot(slot: SlotView, caller: Caller) -> LiveSlot:
    may_see = caller.admin or slot.key == caller.name
    return struct_from(LiveSlot, slot, key=slot.key if slot.key and may_see else None)


def _totals(record: ModelRecord) -> LiveTotals:
    requests = sum(usage.outcomes.total() for usage in record.keys.values())
    return struct_from(LiveTotals, record.tally, requests=requests, answered_tokens=record.tally.generated_tokens)


def _tree(snapshot: FleetSnapshot, model: str, seen: _Seen, caller: Caller) -> LiveTree:
    tree = seen.tree
    return struct_from(
        LiveTree,
        seen,
        model=model,
        time=round(snapshot.time, 3),
        cells=LiveCells(total=tree.cells, used=tree.cells_used),
        stored=LiveStored(limit=tree.stored_limit, used=tree.stored_used),
        nodes=[_node(span, caller) for span in tree.spans],
        omitted=tree.omitted,
    )


def _node(span: SpanView, caller: Caller) -> LiveNode:
    node = msgspec.convert(span, LiveNode, from_attributes=True)  # faster than struct_from: there may be hundreds
    if not _may_read(span, caller):
        node.text = None
    return node


def _reports(model: str, reports: Sequence[ReportView], caller: Caller) -> LiveReports:
    """A report has words of its tenant, or of its own key."""
    found: list[LiveReport] = []
    for view in reports:
        is_own = caller.admin or view.key == caller.name
        if is_own or _may_read(view, caller):
            found.append(LiveReport(id=view.id, key=view.key if view.key and is_own else None, report=view.report))
    return LiveReports(model=model, reports=found)


def _may_read(shown: SpanView | ReportView, caller: Caller) -> bool:
    """An admin reads all texts, other callers those of their own tenant. Keys without a tenant share prefixes, but they
    may belong to different people, so they read none.
    """
    return caller.admin or (shown.tenant != "" and shown.tenant == caller.origin.tenant)
