"""The OpenAPI document, and what each route declares for it.

Routes answer with bytes that msgspec has encoded, so FastAPI cannot derive their schemas.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute, iter_route_contexts
from pydantic import BaseModel
from starlette.routing import BaseRoute

from paddock.gateway.http.framing import SSE, Framing

_JSON, _TEXT = "application/json", "text/plain"
_DEFINITIONS = "#/$defs/"


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str


class Error(msgspec.Struct):
    error: ErrorDetail
    request_id: str


class Success(msgspec.Struct):
    success: bool = True


def describe(
    *answers: Any,
    body: type[BaseModel] | None = None,
    optional: bool = False,
    events: tuple[Any, ...] = (),
    done: bool = False,
    named: bool = False,
    error: Any = Error,
    prefix: str = "",
    text: bool = False,
    framing: Framing = SSE,
) -> dict[str, Any]:
    """Arguments for the decorator of a route.

    `answers` are the schemas of its bodies and `events` those of its stream. `done`: OpenAI's `[DONE]` ends the stream.
    `named`: every event has its type as its name. `prefix` makes the names of a dialect's schemas unique. `text`: the
    answer can be plain text.
    """

    def content() -> dict[str, Any]:
        made: dict[str, Any] = {_JSON: {"schema": _schema(answers)}} if answers else {}
        if text:
            made[_TEXT] = {"schema": {"type": "string"}}
        if events:
            made[framing.media_type] = {"schema": _event_schema((*events, error), framing, done=done, named=named)}
        return made

    def failure() -> dict[str, Any]:
        return {_JSON: {"schema": _schema((error,))}}

    def schema() -> dict[str, Any]:
        assert body is not None
        return {_JSON: {"schema": body.model_json_schema()}}

    failed = _Later({"description": "Refused or failed"}, failure, prefix)
    described: dict[str, Any] = {
        "responses": {200: _Later({"description": "Done"}, content, prefix), "4XX": failed, "5XX": failed}
    }
    if body is not None:
        described["openapi_extra"] = {"requestBody": _Later({"required": not optional}, schema, prefix)}
    return described


class _Later(dict[str, Any]):
    """A part of a route's description whose `content` is added by `complete`. Making the schemas takes a second; a
    server spends it when `/openapi.json` is first requested, not at the start.
    """

    def __init__(self, known: dict[str, Any], content: Callable[[], dict[str, Any]], prefix: str) -> None:
        super().__init__(known)
        self._content = content
        self._prefix = prefix

    def complete(self) -> None:
        if "content" not in self:
            self["content"] = _prefixed(self._content(), self._prefix) if self._prefix else self._content()


def _event_schema(events: tuple[Any, ...], framing: Framing, *, done: bool, named: bool) -> dict[str, Any]:
    if framing is not SSE:
        return _schema(events)
    data: dict[str, Any] = {"type": "string", "contentMediaType": _JSON, "contentSchema": _schema(events)}
    if done:
        data = {"anyOf": [data, {"const": "[DONE]"}]}
    event: dict[str, Any] = {"description": "An error ends a stream."}
    event |= {"type": "string"} if named else {"enum": ["message", "error"]}
    return {
        "type": "object",
        "properties": {"data": data, "event": event},
        "required": ["data"],
        "description": "Each event; between them there may be comments.",
    }


def _prefixed(part: Any, prefix: str) -> Any:
    """A copy with the prefix before the names of all definitions."""
    if isinstance(part, list):
        return [_prefixed(item, prefix) for item in part]
    if isinstance(part, str):
        return _referring(part, f"{_DEFINITIONS}{prefix}")
    if not isinstance(part, dict):
        return part
    longer = {key: _prefixed(value, prefix) for key, value in part.items()}
    if "$defs" in longer:
        longer["$defs"] = {prefix + name: schema for name, schema in longer["$defs"].items()}
    return longer


def _referring(text: str, there: str) -> str:
    """Plain text unchanged; a reference redirected."""
    return there + text.removeprefix(_DEFINITIONS) if text.startswith(_DEFINITIONS) else text


def _schema(alternatives: tuple[Any, ...]) -> dict[str, Any]:
    schemas = [msgspec.json.schema(alternative) for alternative in alternatives]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


class OpenAPI:
    """The document of an application. It is built on the first request for it."""

    def __init__(self, app: FastAPI, needs: Mapping[str, str]) -> None:
        self._app = app
        self._needs = needs
        self._document: dict[str, Any] | None = None
        self._encoded: bytes | None = None
        self._building = threading.Lock()

    def encoded(self) -> bytes:
        """Built once, however many threads ask for it first: it takes a second of Python."""
        with self._building:
            if self._encoded is None:
                self._encoded = msgspec.json.encode(self())
            return self._encoded

    def __call__(self) -> dict[str, Any]:
        if self._document is None:
            for context in iter_route_contexts(self._app.routes):
                _complete(context.original_route)
            document = get_openapi(
                title=self._app.title,
                version=self._app.version,
                description=self._app.description,
                routes=self._app.routes,
            )
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            document["paths"] = _hoisted(document["paths"], schemas)
            document["components"]["securitySchemes"] = {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            }
            for path, operations in document["paths"].items():
                for method, operation in operations.items():
                    operation["security"] = _security(self._needs[f"{method.upper()} {path}"])
            self._document = document
        return self._document


def _complete(route: BaseRoute) -> None:
    if isinstance(route, APIRoute):
        for part in (*route.responses.values(), *(route.openapi_extra or {}).values()):
            if isinstance(part, _Later):
                part.complete()


def _security(need: str) -> list[dict[str, list[str]]]:
    """Either of the two headers for a key, or none on a server without keys."""
    if need == "open":
        return []
    roles = ["admin"] if need == "admin" else []
    return [{"bearer": roles}, {"header": roles}, {}]


def _hoisted(part: Any, schemas: dict[str, Any]) -> Any:
    """A copy with all definitions moved to the components of the document."""
    if isinstance(part, list):
        return [_hoisted(item, schemas) for item in part]
    if isinstance(part, str):
        return _referring(part, "#/components/schemas/")
    if not isinstance(part, dict):
        return part
    for name, schema in part.get("$defs", {}).items():
        hoisted = _hoisted(schema, schemas)
        assert schemas.setdefault(name, hoisted) == hoisted, f"two schemas are called {name}"
    return {key: _hoisted(value, schemas) for key, value in part.items() if key != "$defs"}
