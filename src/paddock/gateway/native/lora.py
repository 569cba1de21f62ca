"""`/lora-adapters`. None can be loaded, so there are none to show and none to scale."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field, RootModel

from paddock.errors import InvalidRequest
from paddock.fleet import Fleet
from paddock.gateway.bodies import read_body
from paddock.gateway.fields import Fields
from paddock.gateway.openapi import Success, describe
from paddock.gateway.responses import JSON


class LoraScale(Fields):
    id: int = Field(ge=0)
    scale: float


class LoraScales(RootModel[list[LoraScale]]):
    pass


class LoraAdapter(msgspec.Struct):
    id: int
    path: str
    scale: float


def lora_routes(fleet: Fleet, *, max_body: int) -> APIRouter:
    router = APIRouter(tags=["native"])

    @router.get("/lora-adapters", **describe(list[LoraAdapter]))
    async def list_adapters(model: str | None = None) -> Response:
        """The adapters that were loaded with a model."""
        fleet.catalogue.find(model)
        return JSON([])

    @router.post("/lora-adapters", **describe(Success, body=LoraScales))
    async def scale_adapters(request: Request, model: str | None = None) -> Response:
        """Set the scales of adapters; those that are not in the list get 0."""
        found = fleet.catalogue.find(model)
        scales = await read_body(request, LoraScales, limit=max_body)
        if scales.root:
            raise InvalidRequest(f"{found.name} has no adapter {scales.root[0].id}", param="[0].id")
        return JSON(Success())

    return router
