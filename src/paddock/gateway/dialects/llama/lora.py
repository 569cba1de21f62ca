"""`/lora-adapters`: the adapters of a model, and their default scales."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import RootModel

from paddock.gateway.auth.caller import model_for
from paddock.gateway.dialects.dialect import Services
from paddock.gateway.generation.fields import LoraScale
from paddock.gateway.http.bodies import read_body
from paddock.gateway.http.openapi import Success, describe
from paddock.gateway.http.responses import JSON


class LoraScales(RootModel[list[LoraScale]]):
    pass


class LoraAdapter(msgspec.Struct):
    id: int
    path: str
    scale: float
    task_name: str
    prompt_prefix: str


def lora_routes(services: Services) -> APIRouter:
    fleet, max_body = services.fleet, services.settings.max_body_bytes
    router = APIRouter(tags=["native"])

    @router.get("/lora-adapters", **describe(list[LoraAdapter]))
    async def list_adapters(request: Request, model: str | None = None) -> Response:
        """The adapters of a model, loaded or not."""
        found = model_for(request, fleet, model)
        scales = dict(fleet.adapters(found))
        return JSON(
            [
                LoraAdapter(id, adapter.path, scales.get(id, 0.0), adapter.task_name, adapter.prompt_prefix)
                for id, adapter in enumerate(found.adapters)
            ]
        )

    @router.post("/lora-adapters", **describe(Success, body=LoraScales))
    async def scale_adapters(request: Request, model: str | None = None) -> Response:
        """Set the scales of adapters for later requests; those that are not in the list get 0."""
        found = fleet.catalogue.find(model)
        scales = await read_body(request, LoraScales, limit=max_body)
        fleet.set_adapters(found, [(item.id, item.scale) for item in scales.root])
        return JSON(Success())

    return router
