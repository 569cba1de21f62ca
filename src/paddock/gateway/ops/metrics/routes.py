from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from paddock.errors import NotSupported
from paddock.gateway.http.openapi import describe
from paddock.gateway.ops.metrics.page import MetricsPage
from paddock.gateway.ops.metrics.rendering import CONTENT_TYPE


def metrics_routes(page: MetricsPage, *, enabled: bool) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/metrics", **describe(text=True))
    async def metrics() -> Response:
        """All metrics, for Prometheus. Loads no model."""
        if not enabled:
            raise NotSupported("/metrics is disabled: the server was started with --no-metrics")
        return Response(await page.text(), media_type=CONTENT_TYPE)

    return router
