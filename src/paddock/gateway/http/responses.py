"""JSON responses, and the one renderer of the error tree."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Scope

from paddock.errors import InvalidRequest, MethodNotAllowed, NotFound, PaddockError
from paddock.gateway.http.framing import SSE, Framing
from paddock.gateway.http.request_context import REQUEST_ID, note_failure
from paddock.gateway.http.scope import ERROR_FORMAT

_encode = msgspec.json.Encoder().encode
Made = TypeVar("Made", bound=msgspec.Struct)


class JSON(Response):
    """A response from a msgspec struct or anything it can encode."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return _encode(content)


def struct_from(kind: type[Made], source: object, /, **more: Any) -> Made:
    """A struct of `more` and, for its other fields, of the source's attributes with the same names."""
    names = [name for name in kind.__struct_fields__ if name not in more and hasattr(source, name)]
    return kind(**{name: getattr(source, name) for name in names}, **more)


def error_body(error: PaddockError) -> dict[str, Any]:
    """OpenAI's shape, and the request id."""
    return error.body() | {"request_id": REQUEST_ID.get()}


@dataclass(frozen=True, slots=True)
class ErrorFormat:
    """How the clients of one API expect errors."""

    body: Callable[[PaddockError], Any] = error_body
    framing: Framing = SSE


_DEFAULT = ErrorFormat()


class ErrorFormats:
    """The error format of each path, by its longest known prefix."""

    def __init__(self, by_prefix: Mapping[str, ErrorFormat]) -> None:
        self._by_prefix = sorted(by_prefix.items(), key=lambda item: -len(item[0]))

    def of(self, path: str) -> ErrorFormat:
        return next((found for prefix, found in self._by_prefix if path.startswith(prefix)), _DEFAULT)


def error_response(error: PaddockError, scope: Scope) -> Response:
    note_failure(error, in_stream=False)
    headers: dict[str, str] = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSON(_format_of(scope).body(error), status_code=error.status, headers=headers)


def error_event(error: PaddockError, scope: Scope) -> bytes:
    """The same error inside a stream that has already begun."""
    note_failure(error, in_stream=True)
    form = _format_of(scope)
    return form.framing.event(_encode(form.body(error)), "error")


def _format_of(scope: Scope) -> ErrorFormat:
    found: ErrorFormat = scope.get(ERROR_FORMAT, _DEFAULT)
    return found


async def on_paddock_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PaddockError), "registered for it"
    return error_response(error, request.scope)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own 404 and 405, in our shape."""
    assert isinstance(error, HTTPException), "registered for it"
    route = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return error_response(NotFound(f"File Not Found: there is no route {route}"), request.scope)
    if error.status_code == 405:
        response = error_response(MethodNotAllowed(f"the method of {route} is not allowed"), request.scope)
        response.headers["Allow"] = ", ".join(method for method in ("GET", "POST", "DELETE") if _has(request, method))
        return response
    return error_response(InvalidRequest(str(error.detail)), request.scope)


def _has(request: Request, method: str) -> bool:
    """Whether any route has this path and method. Starlette reports only the first route with the path."""
    scope = {**request.scope, "method": method}
    return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)


async def on_invalid_parameter(request: Request, error: Exception) -> Response:
    """A path or query parameter that FastAPI refused, in our shape."""
    assert isinstance(error, RequestValidationError), "registered for it"
    problem = error.errors()[0]
    param = str(problem["loc"][-1])
    return error_response(InvalidRequest(f"{param}: {problem['msg']}", param=param), request.scope)
