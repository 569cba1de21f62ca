"""`/admin/cache`: what is cached, by model and tenant, and how it is cleared. Loads no model."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from operator import itemgetter
from typing import Literal

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from paddock import disk_cache
from paddock.disk_cache import Kept
from paddock.errors import Unavailable
from paddock.fleet import Fleet, Model
from paddock.gateway.dialects.dialect import Services
from paddock.gateway.http.bodies import read_body
from paddock.gateway.http.fields import BodyFields
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import JSON
from paddock.types import TenantCache


class ClearRequest(BodyFields):
    """Without fields: everything."""

    model: str | None = None
    tenant: str | None = None
    """A tenant's name; empty: the keys without a tenant."""


class Amount(msgspec.Struct, kw_only=True):
    tokens: int = 0
    bytes: int = 0


class TenantKept(msgspec.Struct, kw_only=True):
    tenant: str
    """Empty: the keys without a tenant."""
    cells: Amount
    """In the context of the model, with what running requests use. Tokens may be in several tiers."""
    host: Amount
    disk: Amount


class ModelKept(msgspec.Struct, kw_only=True):
    model: str
    state: Literal["unloaded", "loading", "loaded", "unloading", "unknown"]
    """`unknown`: files of a model that this server does not serve."""
    tenants: list[TenantKept]


class CacheKept(msgspec.Struct, kw_only=True):
    models: list[ModelKept]


def cache_routes(services: Services) -> APIRouter:
    fleet = services.fleet
    router = APIRouter(tags=["admin"])

    @router.get("/admin/cache", **describe(CacheKept))
    async def show_cache() -> Response:
        """What is cached for each model and tenant, in cells, in host memory and on disk. Loads nothing."""
        found = await asyncio.gather(*(fleet.cache_contents(model) for model in fleet.catalogue))
        return JSON(await _kept(fleet, found))

    @router.post("/admin/cache/clear", **describe(CacheKept, body=ClearRequest, optional=True))
    async def clear_cache(request: Request) -> Response:
        """Drop what is cached and not in use, for a model, for a tenant, or everything. Answers with what is left."""
        body = await read_body(request, ClearRequest, limit=services.settings.max_body_bytes, optional=True)
        chosen = None if body.model is None else fleet.catalogue.named(body.model)
        failure: OSError | None = None
        for folder in _folders(fleet):
            try:
                paths = None if chosen is None else await _paths(fleet, chosen, folder)
                await asyncio.to_thread(disk_cache.clear, folder, models=paths, tenant=body.tenant)
            except OSError as error:
                failure = error
        # After the files: a worker forgets them, and removes what it wrote meanwhile.
        clearing = [
            fleet.clear_cache(model, body.tenant) if chosen in (None, model) else fleet.cache_contents(model)
            for model in fleet.catalogue
        ]
        found = await asyncio.gather(*clearing)
        if failure is not None:
            raise Unavailable(f"cannot clear the cache on disk: {failure.strerror}")
        return JSON(await _kept(fleet, found))

    return router


def _folders(fleet: Fleet) -> list[str]:
    return list(dict.fromkeys(model.options.cache_disk for model in fleet.catalogue if model.options.cache_disk))


def _is_of(path: str | None, model: Model, fleet: Fleet) -> bool:
    """Whether files of the model at this path are those of a model that is served. It may have been served from
    elsewhere then: what no other served model can be meant by is its name.
    """
    if path is None or path == model.path:
        return path is not None
    served, name = {one.path for one in fleet.catalogue}, os.path.basename(path)
    return path not in served and [one for one in served if os.path.basename(one) == name] == [model.path]


async def _paths(fleet: Fleet, model: Model, folder: str) -> set[str]:
    """The paths under which workers have kept files of this model."""
    rows = await asyncio.to_thread(disk_cache.kept, folder)
    return {row.model for row in rows if row.model is not None and _is_of(row.model, model, fleet)}


async def _kept(fleet: Fleet, found: Sequence[list[TenantCache]]) -> CacheKept:
    rows = [row for folder in _folders(fleet) for row in await asyncio.to_thread(disk_cache.kept, folder)]
    models: list[ModelKept] = []
    for status, in_memory in zip(fleet.status(), found, strict=True):
        model, own = status.model, []
        if model.options.cache_disk:  # of several models with the same file, the first
            own = [row for row in rows if _is_of(row.model, model, fleet)]
            rows = [row for row in rows if row not in own]
        models.append(ModelKept(model=model.name, state=status.state, tenants=_tenants(in_memory, own)))
    names = disk_cache.short_names(row.model or row.key for row in rows)
    for path, name in sorted(names.items(), key=itemgetter(1)):
        own = [row for row in rows if (row.model or row.key) == path]
        models.append(ModelKept(model=name, state="unknown", tenants=_tenants([], own)))
    return CacheKept(models=models)


def _tenants(in_memory: list[TenantCache], on_disk: list[Kept]) -> list[TenantKept]:
    names = sorted({one.tenant for one in in_memory} | {row.tenant or "" for row in on_disk})
    by_name = {one.tenant: one for one in in_memory}
    kept: list[TenantKept] = []
    for name in names:
        memory, files = by_name.get(name, TenantCache(name)), [row for row in on_disk if (row.tenant or "") == name]
        kept.append(
            TenantKept(
                tenant=name,
                cells=Amount(tokens=memory.cells, bytes=memory.cell_bytes),
                host=Amount(tokens=memory.host, bytes=memory.host_bytes),
                disk=Amount(tokens=sum(row.tokens for row in files), bytes=sum(row.bytes for row in files)),
            )
        )
    return kept
