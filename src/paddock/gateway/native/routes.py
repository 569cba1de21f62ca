from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from paddock.fleet import Fleet
from paddock.gateway.responses import JSON


def native_routes(fleet: Fleet) -> APIRouter:
    router = APIRouter(tags=["native"])

    @router.get("/slots")
    async def list_slots(model: str | None = None) -> Response:
        """The running places of a model, as they are now; an empty list while it is not loaded."""
        return JSON(await fleet.slots(fleet.catalogue.find(model)))

    return router
