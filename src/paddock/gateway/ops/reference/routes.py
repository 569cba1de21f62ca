from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from paddock.gateway.http.openapi import OpenAPI
from paddock.gateway.ops.web_page import StaticFile, send_file

_FOLDER: Final = Path(__file__).parent
_NAMES: Final = ("reference.html", "reference.css", "reference.js")


def reference_routes(document: OpenAPI) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    page, *others = (StaticFile(name, (_FOLDER / name).read_bytes()) for name in _NAMES)
    files = {file.name: file for file in others}
    described: StaticFile | None = None

    @router.api_route("/docs", methods=["GET", "HEAD"])
    @router.api_route("/redoc", methods=["GET", "HEAD"])
    async def show_reference(request: Request) -> Response:
        return await send_file(request, page)

    @router.api_route("/docs/{name}", methods=["GET", "HEAD"])
    async def show_part(request: Request, name: str) -> Response:
        return await send_file(request, files.get(name))

    @router.api_route("/openapi.json", methods=["GET", "HEAD"])
    async def show_description(request: Request) -> Response:
        nonlocal described
        if described is None:  # made once: that takes longer than any stream should wait
            described = StaticFile("openapi.json", await asyncio.to_thread(lambda: msgspec.json.encode(document())))
        return await send_file(request, described)

    return router
