from __future__ import annotations

import asyncio

from fastapi import APIRouter
from fastapi.responses import Response

from paddock.errors import NotSupported
from paddock.fleet import Fleet
from paddock.gateway.metrics.collecting import collect
from paddock.gateway.metrics.http import HTTPCounts
from paddock.gateway.metrics.processes import look_at
from paddock.gateway.metrics.rendering import CONTENT_TYPE, render
from paddock.gateway.openapi import describe


def metrics_routes(fleet: Fleet, http: HTTPCounts, *, enabled: bool) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/metrics", **describe(text=True))
    async def metrics() -> Response:
        """Everything that is counted, of all models, for Prometheus. Loads none."""
        if not enabled:
            raise NotSupported("this server has no metrics: it was started with --no-metrics")
        processes = await asyncio.to_thread(look_at, [status.pid for status in fleet.members() if status.pid])
        points = collect(fleet, http, processes)
        return Response(await asyncio.to_thread(render, points), media_type=CONTENT_TYPE)

    return router
