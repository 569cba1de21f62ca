"""The permission that each route requires: none, a key, or an admin key. Dialects declare those of their own routes.

A route without one keeps the server from starting. On a server without keys every caller is an admin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from fastapi.routing import APIRoute, iter_route_contexts
from starlette.routing import BaseRoute

from paddock.config import ServerSettings

Need = Literal["open", "key", "metrics", "admin"]
"""`metrics`: an admin key, or a key that may read the metrics."""

Permissions = Mapping[Need, Sequence[str]]
"""The routes that each permission opens, as `METHOD /path`."""

_METRICS: Final = "GET /metrics"
_FILES: Final = "GET /{path}"
OPERATIONS: Final[Permissions] = {
    # None of these shows anything about requests.
    "open": (
        "GET /health",
        "GET /v1/health",
        "GET /openapi.json",
        "GET /docs",
        "GET /docs/{name}",
        "GET /redoc",
        "GET /",
        "GET /icon.svg",
        "GET /icon-192.png",
        "GET /icon-512.png",
        "GET /icon-maskable-512.png",
        "GET /manifest.webmanifest",
        "GET /page-worker.js",
        "GET /diagram.html",
        "GET /preview.html",
        "GET /sw.js",
        "GET /assets/{name}",
    ),
    # They show the caller's own requests only.
    "key": ("GET /live", "GET /v1/usage"),
    "admin": ("GET /admin/usage",),
}
"""The routes that belong to no dialect."""


def needs_of_routes(settings: ServerSettings, declared: Sequence[Permissions]) -> dict[str, Need]:
    """The permission of each route, as declared by the dialects."""
    needs: dict[str, Need] = {_METRICS: "metrics" if settings.metrics_key else "open"}
    if settings.static_path is not None:
        needs[_FILES] = "open"
    for permissions in (OPERATIONS, *declared):
        for need, routes in permissions.items():
            for route in routes:
                if needs.setdefault(route, need) != need:
                    raise LookupError(f"{route} is declared with two permissions, {needs[route]} and {need}")
    return needs


def needs_of_endpoints(routes: Sequence[BaseRoute], needs: Mapping[str, Need]) -> dict[Any, Need]:
    """The permission of each handler. Raises for a route that has none, or that the gate would not see."""
    found: dict[Any, Need] = {}
    for route in iter_route_contexts(routes):
        # HEAD needs what GET needs. A mounted application answers to any method.
        for method in (route.methods or {"*"}) - {"HEAD"}:
            name = f"{method} {route.path_format}"
            if name not in needs:
                raise LookupError(f"no permission is declared for the route {name}")
            if needs[name] != "open" and not isinstance(route.original_route, APIRoute):
                raise LookupError(f"{name} needs {needs[name]}, but FastAPI's dependencies do not apply to it")
            if found.setdefault(route.endpoint, needs[name]) != needs[name]:
                raise LookupError(f"{name} and another route of the same handler need different permissions")
    return found
