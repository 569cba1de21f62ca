from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import Response

from paddock.errors import NotSupported
from paddock.fleet import Fleet
from paddock.gateway.metrics.collecting import collect
from paddock.gateway.metrics.http import HTTPCounts
from paddock.gateway.metrics.processes import look_at
from paddock.gateway.metrics.rendering import render
from paddock.gateway.openapi import describe


def metrics_routes(fleet: Fleet, http: HTTPCounts, *, enabled: bool) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/metrics", **describe(text=True))
    async def metrics(request: Request) -> Response:
        """Everything that is counted, of all models, for Prometheus. Loads none."""
        if not enabled:
            raise NotSupported("this server has no metrics: it was started with --no-metrics")
        processes = await asyncio.to_thread(look_at, [status.pid for status in fleet.status() if status.pid])
        points = collect(fleet, http, processes)
        text, content_type = await asyncio.to_thread(render, points, request.headers.get("accept", ""))
        return Response(text, media_type=content_type)

    return router
