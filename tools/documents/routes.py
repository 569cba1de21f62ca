"""docs/reference/routes.md: every route, what it needs and what it does."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from paddock.config import load_settings
from paddock.fleet import Fleet, Rules, open_catalogue
from paddock.gateway.app import create_app
from paddock.gateway.auth.permissions import needs_of_routes
from paddock.gateway.dialects import declared_permissions

_HEADER = """\
# Routes

Every HTTP route. `/docs` and `/openapi.json` of a running server describe the bodies and the responses.
(This page is generated from the code: `make docs`.) [The HTTP API](../guides/http-api.md) explains what a schema
cannot: unknown fields, limits, streams and errors.

*Key* says what a request needs when the server has keys: nothing, any key, or an admin key. A server without keys needs
none. *Stream* marks routes that can answer with server-sent events.
"""
_TITLES = {
    "openai": "OpenAI",
    "anthropic": "Anthropic",
    "native": "llama-server",
    "mcp": "Tools of MCP servers",
    "models": "Models",
    "admin": "Administration",
    "usage": "Usage",
    "health": "Health, metrics and live view",
}
_NEEDS = {"open": "none", "key": "any", "metrics": "none, or metrics", "admin": "admin"}


def page() -> str:
    needs = needs_of_routes(load_settings(environ={}).server, declared_permissions())
    tables: dict[str, dict[str, str]] = {}
    for path, operations in _app().openapi()["paths"].items():
        for method, operation in operations.items():
            route = f"{method.upper()} {path}"
            tag = operation.get("tags", ["other"])[0]
            tables.setdefault(tag, {})[route] = _row(route, operation, _NEEDS[needs[route]])
    parts = [_HEADER]
    for tag in [*(tag for tag in _TITLES if tag in tables), *sorted(tables.keys() - _TITLES.keys())]:
        rows = "".join(tables[tag][route] for route in sorted(tables[tag], key=lambda each: each.split()[::-1]))
        parts.append(f"\n## {_TITLES.get(tag, tag)}\n\n| route | key | stream | |\n|---|---|---|---|\n{rows}")
    hidden = sorted(route for route in needs if not any(route in table for table in tables.values()))
    listed = ", ".join(f"`{route}`" for route in hidden)
    parts.append(f"\n## Pages\n\nThese need no key and are not in `/openapi.json`: {listed}.\n")
    return "".join(parts)


def _row(route: str, operation: dict[str, Any], need: str) -> str:
    content = operation["responses"].get("200", {}).get("content", {})
    stream = "yes" if "text/event-stream" in content else ""
    return f"| `{route}` | {need} | {stream} | {' '.join(operation.get('description', '').split())} |\n"


def _app() -> FastAPI:
    """The application of a server with the fake model. Nothing is started."""
    settings = load_settings(flags={"model_manager.model": "fake:"}, environ={})
    fleet = Fleet(open_catalogue(settings.model_manager), Rules.of(settings.model_manager))
    return create_app(settings, fleet, lambda: settings)
