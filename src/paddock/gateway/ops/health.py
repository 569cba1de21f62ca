"""`GET /health`: needs no key and loads nothing."""

from __future__ import annotations

import time
from typing import Literal

import msgspec
from fastapi import APIRouter
from fastapi.responses import Response

from paddock.errors import ModelLoading, ServerStopping
from paddock.fleet import Fleet
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import JSON


class Health(msgspec.Struct, kw_only=True):
    status: Literal["ok"] = "ok"
    model_loaded: bool
    loaded_models: list[str]
    slots_available: int
    slots_total: int
    uptime: int
    """Seconds."""


def health_routes(fleet: Fleet) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/health", **describe(Health))
    @router.get("/v1/health", **describe(Health))
    async def health() -> Response:
        """200 when requests can be served. 503 while the only model is loading, as llama-server answers, while models
        are preloaded at the start, and while the server finishes its last requests (`server_stopping`). After an idle
        timeout has unloaded the model it is 200 again: the next request loads it.
        """
        if fleet.stopping:
            raise ServerStopping("the server is stopping: it finishes its running requests")
        status = fleet.status()
        is_loading = len(status) == 1 and status[0].state == "loading"
        if is_loading or any(fleet.is_preloading(item.model) for item in status):
            raise ModelLoading("Loading model", retry_after=1)
        loaded = [item for item in status if item.state == "loaded"]
        total = sum(item.slots for item in loaded)
        busy = sum(min(item.running, item.slots) for item in loaded)
        return JSON(
            Health(
                model_loaded=bool(loaded),
                loaded_models=[item.model.name for item in loaded],
                slots_available=total - busy,
                slots_total=total,
                uptime=int(time.monotonic() - fleet.started),
            )
        )

    return router
