"""Ollama's API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from paddock.gateway.dialects.dialect import Dialect, Services
from paddock.gateway.dialects.ollama.created import CreatedModels
from paddock.gateway.dialects.ollama.embedding import embedding_routes
from paddock.gateway.dialects.ollama.generating import generating_routes
from paddock.gateway.dialects.ollama.managing import managing_routes
from paddock.gateway.dialects.ollama.models import model_routes
from paddock.gateway.dialects.ollama.resolving import Resolver
from paddock.gateway.dialects.ollama.schema import Failure, ollama_error_body
from paddock.gateway.http.framing import NDJSON
from paddock.storage import default_folder


def _routers(services: Services) -> Sequence[APIRouter]:
    created = CreatedModels(services.settings.data_dir or default_folder())
    resolver = Resolver(services.fleet, created)
    routers = [
        each(services, resolver) for each in (generating_routes, embedding_routes, model_routes, managing_routes)
    ]
    return [*routers, *([_greeting(port)] if (port := services.settings.ollama_port) is not None else [])]


def _greeting(port: int) -> APIRouter:
    """`/` on Ollama's own port, where programs look for its answer. On the other ports it is the web page."""

    class OnPort(APIRoute):
        def matches(self, scope: Scope) -> tuple[Match, Scope]:
            server: Any = scope.get("server") or ("", None)
            return super().matches(scope) if server[1] == port else (Match.NONE, {})

    router = APIRouter(route_class=OnPort, include_in_schema=False)

    @router.api_route("/", methods=["GET", "HEAD"])
    async def greet() -> PlainTextResponse:
        return PlainTextResponse("Ollama is running")

    return router


OLLAMA: Final = Dialect(
    tag="ollama",
    routers=_routers,
    permissions={
        "key": [
            *("POST /api/chat", "POST /api/generate", "POST /api/embed", "POST /api/embeddings"),
            *("GET /api/tags", "POST /api/show", "GET /api/ps", "GET /api/version"),
        ],
        "admin": [
            *("POST /api/create", "POST /api/copy", "DELETE /api/delete", "POST /api/pull", "POST /api/push"),
            "POST /api/blobs/{digest}",
        ],
    },
    framing=NDJSON,
    prefixes=["/api/"],
    error_body=ollama_error_body,
    error_schema=Failure,
    schema_prefix="Ollama",
)
