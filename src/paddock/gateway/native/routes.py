from __future__ import annotations

from fastapi import APIRouter

from paddock.config import ServerSettings
from paddock.fleet import Fleet
from paddock.gateway.native.lora import lora_routes
from paddock.gateway.native.props import props_routes
from paddock.gateway.native.slots import slot_routes
from paddock.gateway.native.text import text_routes


def native_routes(fleet: Fleet, settings: ServerSettings) -> APIRouter:
    router = APIRouter()
    router.include_router(slot_routes(fleet, settings))
    router.include_router(props_routes(fleet, settings))
    router.include_router(text_routes(fleet, max_body=settings.max_body_bytes))
    router.include_router(lora_routes(fleet, max_body=settings.max_body_bytes))
    return router
