"""What each route asks for: nothing, a key, or an admin's key. This table is all there is to say about it.

A route that is not in it keeps the server from starting. Without any key in the settings everybody is an admin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from fastapi.routing import APIRoute, iter_route_contexts
from starlette.routing import BaseRoute

from paddock.config import ServerSettings

Need = Literal["open", "key", "metrics", "admin"]
"""`metrics`: an admin's key, or one that may read the metrics."""

_METRICS: Final = "GET /metrics"
_ROUTES: Final[dict[Need, tuple[str, ...]]] = {
    # Nothing here tells of anybody's requests.
    "open": (
        "GET /health",
        "GET /v1/health",
        "GET /openapi.json",
        "GET /docs",
        "GET /docs/{name}",
        "GET /redoc",
        "GET /",
        "GET /icon.svg",
        "GET /assets/{name}",
    ),
    # The models that the key may ask, and its own doings. What is posted counts towards the key's limits.
    "key": (
        "GET /models",
        "GET /v1/models",
        "GET /v1/models/{id}",
        "GET /models/sse",
        "GET /live",
        "GET /props",
        "GET /lora-adapters",
        "GET /v1/usage",
        "POST /v1/chat/completions",
        "POST /v1/completions",
        "POST /v1/responses",
        "POST /v1/responses/input_tokens",
        "POST /v1/messages",
        "POST /v1/messages/count_tokens",
        "POST /v1/embeddings",
        "POST /completion",
        "POST /completions",
        "POST /infill",
        "POST /embedding",
        "POST /embeddings",
        "POST /rerank",
        "POST /reranking",
        "POST /v1/rerank",
        "POST /v1/reranking",
        "POST /tokenize",
        "POST /detokenize",
        "POST /apply-template",
    ),
    # What changes things for others, or shows what they do.
    "admin": (
        "GET /admin/status",
        "GET /admin/usage",
        "POST /admin/load",
        "POST /admin/unload",
        "POST /admin/reload",
        "POST /admin/drain",
        "POST /admin/undrain",
        "POST /models",
        "POST /v1/models",
        "POST /models/load",
        "POST /models/unload",
        "GET /slots",
        "POST /slots/{id_slot}",
        "POST /props",
        "POST /lora-adapters",
    ),
}


def needs_of_routes(settings: ServerSettings) -> dict[str, Need]:
    """By method and path."""
    needs = {route: need for need, routes in _ROUTES.items() for route in routes}
    return needs | {_METRICS: "metrics" if settings.metrics_key else "open"}


def needs_of_endpoints(routes: Sequence[BaseRoute], needs: Mapping[str, Need]) -> dict[Any, Need]:
    """By the function that answers. Raises for a route of which nothing is said, or that would not be guarded."""
    found: dict[Any, Need] = {}
    for route in iter_route_contexts(routes):
        # Who may GET something may ask for its HEAD; what is mounted answers to any method.
        for method in (route.methods or {"*"}) - {"HEAD"}:
            name = f"{method} {route.path_format}"
            if name not in needs:
                raise LookupError(f"{name} is a route of which {__name__} does not say what it needs")
            if needs[name] != "open" and not isinstance(route.original_route, APIRoute):
                raise LookupError(f"{name} needs {needs[name]}, but FastAPI's dependencies do not reach it")
            if found.setdefault(route.endpoint, needs[name]) != needs[name]:
                raise LookupError(f"{name} needs another thing than a route with the same function")
    return found
