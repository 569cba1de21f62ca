"""`GET /live`: what the server is doing, as events, for the web page. It loads no model and resets no idle timer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import NamedTuple

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from paddock import __version__
from paddock.batches import Batches
from paddock.fleet import Fleet, FleetSnapshot, ModelSnapshot, ModelStatus, PrefixSpan, ReplicaSnapshot
from paddock.gateway.auth.caller import Caller, caller_of
from paddock.gateway.auth.gate import Gate
from paddock.gateway.http.event_stream import EventStream
from paddock.gateway.http.framing import SSE
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import struct_from
from paddock.gateway.ops.live_schema import (
    LiveCells,
    LiveHistogram,
    LiveMemory,
    LiveModel,
    LiveNode,
    LivePrefix,
    LivePrefixes,
    LiveReplica,
    LiveReport,
    LiveReports,
    LiveSlot,
    LiveState,
    LiveStored,
    LiveTotals,
    LiveTree,
)
from paddock.types import ReportView, SlotView, SpanView, TreeView

_encode = msgspec.json.Encoder().encode


class _Seen(NamedTuple):
    """The tree and the counters that were sent last."""

    tree: TreeView
    hits: int
    misses: int
    evictions: int


def live_routes(fleet: Fleet, gate: Gate, batches: Batches | None = None) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/live", **describe(events=(LiveState, LiveTree, LivePrefixes, LiveReports), named=True))
    async def live(request: Request) -> Response:
        """What the server is doing, as a stream without end: `state` at once and each second, and for each loaded model
        its prefix tree (`tree`), where its prefixes are if it has replicas (`prefixes`), and why its last prompts were
        not cached (`reports`), at once and when they have changed. Loads no model and resets no idle timer.
        """
        fleet.live_feed.refuse_if_full()
        return EventStream(_events(fleet, gate, batches, caller_of(request)))

    return router


async def _events(fleet: Fleet, gate: Gate, batches: Batches | None, caller: Caller) -> AsyncGenerator[bytes]:
    shown: dict[str, _Seen] = {}
    reported: dict[str, Sequence[ReportView]] = {}
    placed: dict[str, Sequence[PrefixSpan]] = {}
    async with aclosing(fleet.live_feed.snapshots()) as snapshots:
        async for snapshot in snapshots:
            if not gate.still_admits(caller):
                return
            models = [model for model in snapshot.models if caller.may_use(model.status.model)]
            has_batches = batches is not None and batches.runner is not None
            yield SSE.event(_encode(_state(snapshot, models, caller, has_batches)), "state")
            for model in models:
                name, tally = model.status.model.name, model.tally
                if model.reports and reported.get(name) is not model.reports:
                    reported[name] = model.reports
                    yield SSE.event(_encode(_reports(name, model.reports, caller)), "reports")
                if placed.get(name, []) != model.prefixes:
                    placed[name] = model.prefixes
                    yield SSE.event(_encode(_prefixes(name, model.prefixes, caller)), "prefixes")
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
    status, replicas = model.status, model.replicas
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
        slots=[_slot(slot, caller) for slot in model.slots],
        waiting=sum(one.waiting for one in replicas) if replicas else status.waiting + model.queued,
        replicas=[_replica(replica, caller) for replica in replicas],
        totals=_totals(model),
        first_token=struct_from(LiveHistogram, model.record.first_token_seconds),
        inter_token=struct_from(LiveHistogram, model.tally.inter_token_seconds),
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


def _replica(replica: ReplicaSnapshot, caller: Caller) -> LiveReplica:
    status = replica.status
    place = status.url or (f"node {status.node[:8]}" if status.node else "")
    return struct_from(
        LiveReplica,
        replica,
        name=status.name,
        kind=status.kind,
        place=place if place and caller.admin else None,
        reason=replica.reason or None,
        drained=status.drained,
        excluded=status.excluded or None,
    )


def _totals(model: ModelSnapshot) -> LiveTotals:
    """Replicas elsewhere count what they know."""
    tally = model.tally
    elsewhere = [replica for replica in model.replicas if replica.status.kind != "worker"]
    return struct_from(
        LiveTotals,
        tally,
        requests=sum(usage.outcomes.total() for usage in model.record.keys.values()),
        prompt_tokens=tally.prompt_tokens + sum(replica.prompt_tokens or 0 for replica in elsewhere),
        cached_tokens=tally.cached_tokens + sum(replica.cached_tokens or 0 for replica in elsewhere),
        answered_tokens=tally.generated_tokens + sum(replica.answered_tokens for replica in elsewhere),
    )


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


def _prefixes(model: str, spans: Sequence[PrefixSpan], caller: Caller) -> LivePrefixes:
    prefixes = [struct_from(LivePrefix, span, text=span.text if _may_read(span, caller) else None) for span in spans]
    return LivePrefixes(model=model, prefixes=prefixes)


def _reports(model: str, reports: Sequence[ReportView], caller: Caller) -> LiveReports:
    """A report has words of its tenant, or of its own key."""
    found: list[LiveReport] = []
    for view in reports:
        is_own = caller.admin or view.key == caller.name
        if is_own or _may_read(view, caller):
            found.append(LiveReport(id=view.id, key=view.key if view.key and is_own else None, report=view.report))
    return LiveReports(model=model, reports=found)


def _may_read(shown: SpanView | ReportView | PrefixSpan, caller: Caller) -> bool:
    """An admin reads all texts, other callers those of their own tenant. Keys without a tenant share prefixes, but they
    may belong to different people, so they read none.
    """
    return caller.admin or (shown.tenant != "" and shown.tenant == caller.origin.tenant)
