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
        """Everything that is counted, of all models, for Prometheus. Loads none."""
        if not enabled:
            raise NotSupported("this server has no metrics: it was started with --no-metrics")
        return Response(await page.text(), media_type=CONTENT_TYPE)

    return router
