"""The OpenAPI document, and what each route declares for it.

Routes answer with bytes that msgspec has encoded, so FastAPI cannot derive their schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute, iter_route_contexts
from pydantic import BaseModel
from starlette.routing import BaseRoute

from paddock.gateway.http.framing import SSE, Framing

_JSON = "application/json"
TEXT = "text/plain"
_COMPONENTS = "#/components/schemas/"


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str
    n_prompt_tokens: int | msgspec.UnsetType = msgspec.UNSET
    """With `context_length_exceeded`: tokens of the prompt, or the least that it can have."""
    n_ctx: int | msgspec.UnsetType = msgspec.UNSET
    """With `context_length_exceeded`: the context of one request."""


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
    text: str = "",
    framing: Framing = SSE,
) -> dict[str, Any]:
    """Arguments for the decorator of a route.

    `answers` are the schemas of its bodies and `events` those of its stream. `done`: OpenAI's `[DONE]` ends the stream.
    `named`: every event has its type as its name. `prefix` makes the names of a dialect's schemas unique. `text`
    is the media type of an answer that is no JSON.
    """

    def content() -> dict[str, Any]:
        made: dict[str, Any] = {_JSON: _media(answers, prefix)} if answers else {}
        if text:
            made[text] = {"schema": {"type": "string"}}
        if events:
            made[framing.media_type] = _event_media((*events, error), prefix, framing, done=done, named=named)
        return made

    def schema() -> dict[str, Any]:
        assert body is not None
        found = body.model_json_schema(ref_template=f"{_COMPONENTS}{prefix}{{model}}")
        definitions = found.pop("$defs", {})
        return {_JSON: {"schema": found | _prefixed(definitions, prefix)}}

    failed = _Later({"description": "Refused or failed"}, lambda: {_JSON: _media((error,), prefix)})
    described: dict[str, Any] = {
        "responses": {200: _Later({"description": "Done"}, content), "4XX": failed, "5XX": failed}
    }
    if body is not None:
        described["openapi_extra"] = {"requestBody": _Later({"required": not optional}, schema)}
    return described


class _Later(dict[str, Any]):
    """A part of a route's description whose `content` is added by `complete`. Making the schemas takes a second; a
    server spends it when `/openapi.json` is first requested, not at the start.
    """

    def __init__(self, known: dict[str, Any], content: Callable[[], dict[str, Any]]) -> None:
        super().__init__(known)
        self._content = content

    def complete(self) -> None:
        if "content" not in self:
            self["content"] = self._content()


def _media(alternatives: tuple[Any, ...], prefix: str) -> dict[str, Any]:
    """The schema of one of these types. Their definitions stay in `$defs` until the document is built."""
    schemas, definitions = msgspec.json.schema_components(alternatives, ref_template=f"{_COMPONENTS}{prefix}{{name}}")
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    return {"schema": schema | _prefixed(definitions, prefix)}


def _prefixed(definitions: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {"$defs": {prefix + name: schema for name, schema in definitions.items()}}


def _event_media(events: tuple[Any, ...], prefix: str, framing: Framing, *, done: bool, named: bool) -> dict[str, Any]:
    media = _media(events, prefix)
    if framing is not SSE:
        return media
    definitions = media["schema"].pop("$defs")
    data: dict[str, Any] = {"type": "string", "contentMediaType": _JSON, "contentSchema": media["schema"]}
    if done:
        data = {"anyOf": [data, {"const": "[DONE]"}]}
    event: dict[str, Any] = {"description": "An error ends a stream."}
    event |= {"type": "string"} if named else {"enum": ["message", "error"]}
    schema = {
        "type": "object",
        "properties": {"data": data, "event": event},
        "required": ["data"],
        "description": "Each event; between them there may be comments.",
    }
    return {"schema": schema | {"$defs": definitions}}


def build_openapi(app: FastAPI, needs: Mapping[str, str], prefix: str = "") -> dict[str, Any]:
    """The document of an application. Building it takes a second of Python."""
    for context in iter_route_contexts(app.routes):
        _complete(context.original_route)
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    if prefix:
        document["servers"] = [{"url": prefix}]
    components = document.setdefault("components", {})
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            operation["security"] = _security(needs[f"{method.upper()} {path}"])
            _hoist_definitions(operation, components.setdefault("schemas", {}))
    return document


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


def _hoist_definitions(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Move the definitions of an operation to the components of the document."""
    for part in (operation.get("requestBody", {}), *operation["responses"].values()):
        for media in part.get("content", {}).values():
            for name, schema in media["schema"].pop("$defs", {}).items():
                assert schemas.setdefault(name, schema) == schema, f"two schemas are called {name}"
