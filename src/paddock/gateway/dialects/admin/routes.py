from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any

import msgspec
import structlog
from fastapi import APIRouter, Request
from fastapi.responses import Response

from paddock.errors import PaddockError
from paddock.fleet import Fleet, Model, ModelStatus, ReplicaStatus
from paddock.gateway.auth.caller import Caller, caller_of
from paddock.gateway.dialects.admin import schema
from paddock.gateway.dialects.dialect import Services
from paddock.gateway.http.bodies import read_body
from paddock.gateway.http.event_stream import EventStream
from paddock.gateway.http.fields import Nothing
from paddock.gateway.http.openapi import Success, describe
from paddock.gateway.http.responses import JSON, struct_from
from paddock.gateway.ops.downloads import Downloads, ModelChange

_log = structlog.get_logger(__name__)
_encode = msgspec.json.Encoder().encode
_ALL = "all"


class _Background:
    """Work that continues after its request has been answered."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, Any], what: str, model: Model) -> None:
        async def run() -> None:
            try:
                await work
            except PaddockError as error:
                _log.error(f"{what} failed", model=model.name, error=error.message)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def admin_routes(services: Services) -> APIRouter:
    fleet, downloads, max_body = services.fleet, services.downloads, services.settings.max_body_bytes
    router = APIRouter(tags=["admin"])
    background = _Background()

    @router.get("/admin/status", **describe(schema.FleetState))
    async def show_status() -> Response:
        """The state of every model. Loads nothing and keeps nothing loaded."""
        states = [_state(status) for status in fleet.status()]
        return JSON(
            schema.FleetState(
                uptime=round(time.monotonic() - fleet.started, 3),
                memory_limit=dict(fleet.rules.memory_limit),
                cache_ram=fleet.rules.cache_ram,
                models=states,
            )
        )

    def to_load(body: schema.LoadRequest) -> Model:
        """The model, with the options of the request."""
        model = fleet.catalogue.named(body.model)
        return model if body.options is None else fleet.set_load_options(model, body.options.chosen())

    @router.post("/admin/load", **describe(schema.Done, body=schema.LoadRequest))
    async def load(request: Request) -> Response:
        """Load a model, and answer when it is loaded. Earlier failures are forgotten."""
        body = await read_body(request, schema.LoadRequest, limit=max_body)
        model = to_load(body)
        await fleet.load(model)
        return JSON(schema.Done(models=[model.name]))

    @router.post("/admin/unload", **describe(schema.Done, body=schema.UnloadRequest))
    async def unload(request: Request) -> Response:
        """Unload a model, or all of them, after their running requests."""
        body = await read_body(request, schema.UnloadRequest, limit=max_body)
        models = list(fleet.catalogue) if body.model == _ALL else [fleet.catalogue.named(body.model)]
        loaded = [status.model for status in fleet.status() if status.state != "unloaded" and status.model in models]
        if body.wait:
            await asyncio.gather(*map(fleet.unload, loaded))
        else:
            for model in loaded:
                background.begin(fleet.unload(model), "unloading", model)
        return JSON(schema.Done(models=[model.name for model in loaded]))

    @router.post("/admin/reload", **describe(schema.ReloadDone, body=Nothing, optional=True))
    async def reload() -> Response:
        """Read the settings and the models' directory again. Only models that have changed are touched, and those
        finish what they are serving. If something is wrong, nothing changes.
        """
        done = await services.reloader.reload()
        names = [model.name for model in fleet.catalogue]
        return JSON(schema.ReloadDone(models=names, changed=done.changed, restart_needed=done.restart_needed))

    @router.post("/admin/drain", **describe(schema.ReplicaDone, body=schema.DrainRequest))
    async def drain(request: Request) -> Response:
        """Stop sending requests to a replica; it finishes its running ones. A local worker then exits."""
        body = await read_body(request, schema.DrainRequest, limit=max_body)
        model = fleet.catalogue.named(body.model)
        draining = fleet.replica_set(model).drain(body.replica)
        if body.wait:
            await draining
        else:
            background.begin(draining, "draining", model)
            await asyncio.sleep(0)  # lets the drain start before the answer is sent
        return JSON(_replica_done(fleet, model, body.replica))

    @router.post("/admin/undrain", **describe(schema.ReplicaDone, body=schema.NamedReplica))
    async def undrain(request: Request) -> Response:
        """Use a drained replica again."""
        body = await read_body(request, schema.NamedReplica, limit=max_body)
        model = fleet.catalogue.named(body.model)
        fleet.replica_set(model).undrain(body.replica)
        return JSON(_replica_done(fleet, model, body.replica))

    # ── llama-server's router ────────────────────────────────────────────────────────────────────────────────────────

    @router.post("/models/load", **describe(Success, body=schema.LoadRequest))
    async def begin_to_load(request: Request) -> Response:
        """Start loading a model; `/models/sse` and `/models` show the progress."""
        body = await read_body(request, schema.LoadRequest, limit=max_body)
        model = to_load(body)
        background.begin(fleet.load(model), "loading", model)
        return JSON(Success())

    @router.post("/models/unload", **describe(Success, body=schema.NamedModel))
    async def begin_to_unload(request: Request) -> Response:
        """Unload a model after its running requests, or cancel a download."""
        body = await read_body(request, schema.NamedModel, limit=max_body)
        if downloads.cancel(body.model):
            return JSON(Success())
        model = fleet.catalogue.named(body.model)
        background.begin(fleet.unload(model), "unloading", model)
        return JSON(Success())

    @router.get("/models/sse", **describe(events=(schema.ModelEvent, schema.DownloadProgress, schema.ModelsEvent)))
    async def watch(request: Request) -> Response:
        """State changes of models as events. The first events are the current states. Admin keys also get the progress
        of downloads, and deletions.
        """
        caller = caller_of(request)
        states = _events(fleet, caller)
        return EventStream(_beside(states, _changes(downloads)) if caller.admin else states)

    return router


async def _events(fleet: Fleet, caller: Caller) -> AsyncGenerator[bytes]:
    async with aclosing(fleet.watch()) as watching:
        async for status in watching:
            if caller.may_use(status.model):
                yield _event(status)


async def _beside(events: AsyncGenerator[bytes], others: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """The events of both as they come, until the first ends."""
    queue: asyncio.Queue[bytes | None] = asyncio.Queue(1)

    async def pass_on(source: AsyncGenerator[bytes]) -> None:
        async with aclosing(source):
            async for event in source:
                await queue.put(event)

    async def pass_on_to_the_end() -> None:
        await pass_on(events)
        await queue.put(None)

    tasks = [asyncio.ensure_future(pass_on_to_the_end()), asyncio.ensure_future(pass_on(others))]
    try:
        while (event := await queue.get()) is not None:
            yield event
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _changes(downloads: Downloads) -> AsyncGenerator[bytes]:
    async with aclosing(downloads.watch()) as changes:
        async for change in changes:
            yield b"data: " + _encode(_change(change)) + b"\n\n"


def _change(change: ModelChange) -> schema.DownloadProgress | schema.ModelsEvent:
    if change.event == "download_progress":
        files = {url: schema.FileProgress(file.done, file.total) for url, file in change.files.items()}
        return schema.DownloadProgress(change.model, change.event, files)
    return schema.ModelsEvent(change.model, change.event, schema.ChangeReason(change.reason))


def _event(status: ModelStatus) -> bytes:
    progress = None
    if status.state == "loading":
        progress = {"stages": ["text_model"], "current": "text_model", "value": status.progress}
    data = schema.ModelStatusData(status.state, progress, status.failure if status.is_failed else None)
    event = schema.ModelEvent(status.model.name, "model_status", data)
    return b"data: " + _encode(event) + b"\n\n"


def _replica_done(fleet: Fleet, model: Model, name: str) -> schema.ReplicaDone:
    (status,) = [one for one in fleet.replicas(model) if one.name == name]
    return schema.ReplicaDone(model=model.name, replica=name, drained=status.drained, running=status.load.running)


def _replica(status: ReplicaStatus) -> schema.ReplicaState:
    unknown = {
        name: None for name in ("excluded", "url", "node", "fingerprint", "failure") if not getattr(status, name)
    }
    load = {name: getattr(status.load, name) for name in ("running", "waiting", "slots")}
    return struct_from(schema.ReplicaState, status, retry_after=round(status.retry_after, 3), **load, **unknown)


def _state(status: ModelStatus) -> schema.ModelState:
    return struct_from(
        schema.ModelState,
        status,
        name=status.model.name,
        pinned=status.model.settings.pinned,
        memory=dict(status.needs),
        prefix_memory=status.levels.stored_bytes,
        prefix_memory_limit=status.cache_share,
        loaded_for=round(status.loaded_for, 3),
        idle_for=round(status.idle_for, 3),
        idle_timeout=status.idle_timeout,
        failure=status.failure or None,
        retry_after=round(status.retry_after, 3),
        replicas=[_replica(replica) for replica in status.replicas],
    )
