"""`/props`: what a model and the server around it are. Looking wakes nothing."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict

from paddock import __version__
from paddock.config import ServerSettings
from paddock.errors import NotSupported
from paddock.fleet import Fleet, Model
from paddock.gateway.bodies import read_body
from paddock.gateway.native.settings import generation_settings
from paddock.gateway.responses import JSON
from paddock.types import EngineOptions, ModelInfo, SamplingParams


class Changes(BaseModel):
    """Nothing can be changed yet, as with llama-server; a field that would be is refused, not dropped."""

    model_config = ConfigDict(extra="forbid")


def props_routes(fleet: Fleet, settings: ServerSettings) -> APIRouter:
    router = APIRouter(tags=["native"])

    @router.get("/props")
    async def show_props(model: str | None = None) -> Response:
        """What a model is and how it is served. Of one that is not loaded, only what is known without loading it."""
        found = fleet.catalogue.find(model)
        info = fleet.info(found)
        return JSON(
            _model(found, info)
            | {"kind": await fleet.kind(found), "pooling": None if info is None else info.pooling}
            | _memory(fleet.options, info)
            | {
                "endpoint_slots": settings.slots,
                "endpoint_props": settings.props,
                "endpoint_metrics": False,
                "build_info": f"paddock {__version__}" + (f", {info.engine}" if info is not None else ""),
            }
        )

    @router.post("/props", openapi_extra={"requestBody": _BODY})
    async def change_props(request: Request) -> Response:
        """Change what can be changed while the server runs: nothing yet."""
        if not settings.props:
            raise NotSupported("properties cannot be changed here: start the server with --props")
        await read_body(request, Changes, limit=settings.max_body_bytes, optional=True)
        return JSON({"success": True})

    return router


_BODY = {"content": {"application/json": {"schema": Changes.model_json_schema()}}}


def _model(model: Model, info: ModelInfo | None) -> dict[str, Any]:
    defaults = generation_settings(SamplingParams(), max_tokens=-1)
    return {
        "default_generation_settings": {"n_ctx": info.n_ctx if info is not None else 0, "params": defaults},
        "model_alias": model.name,
        "model_path": model.path,
        "modalities": {"vision": False, "audio": False},
        "chat_template": info.chat_template if info is not None else "",
        "bos_token": info.bos if info is not None else "",
        "eos_token": info.eos if info is not None else "",
        "loaded": info is not None,
        "is_sleeping": info is None,
    }


def _memory(options: EngineOptions, info: ModelInfo | None) -> dict[str, Any]:
    unified = options.kv_unified if info is None else info.kv_unified
    return {
        "total_slots": options.parallel if info is None else info.n_slots,
        "deterministic": _deterministic(options, info, unified=unified),
        "reuse": None if info is None else info.reuse,
        "kv_cache": {
            "layout": "unified" if unified else "streams",
            "type_k": options.cache_type_k,
            "type_v": options.cache_type_v,
            "cells": None if info is None else info.n_cells,
            "bytes_per_token": None if info is None else info.bytes_per_token,
            "ram_bytes": options.cache_ram_bytes,
        },
    }


def _deterministic(options: EngineOptions, info: ModelInfo | None, *, unified: bool) -> dict[str, Any]:
    """Whether every request is so unless it says otherwise, and how such requests are kept apart: each with nobody else
    in the cells, or in steps of their own, of which so many answers may share one.
    """
    method = "alone" if unified else "own_steps"
    return {"default": options.deterministic, "method": method, "together": 1 if info is None else info.together}
