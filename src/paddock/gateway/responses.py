"""Bodies and errors: the one renderer of the error tree, and JSON as fast as it gets."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Match

from paddock.errors import InvalidRequest, MethodNotAllowed, NotFound, PaddockError

_encode = msgspec.json.Encoder().encode


class JSON(Response):
    """A response from a msgspec struct or anything it can encode."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return _encode(content)


def error_response(error: PaddockError) -> Response:
    headers: dict[str, str] = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after)))
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSON(error.body(), status_code=error.status, headers=headers)


def error_event(error: PaddockError) -> bytes:
    """The same error inside a stream that has already begun."""
    return b"event: error\ndata: " + _encode(error.body()) + b"\n\n"


async def on_paddock_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, PaddockError), "registered for it"
    return error_response(error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own 404 and 405, in our shape."""
    assert isinstance(error, HTTPException), "registered for it"
    where = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return error_response(NotFound(f"there is no {where} here"))
    if error.status_code == 405:
        response = error_response(MethodNotAllowed(f"{where} is not allowed"))
        response.headers["Allow"] = ", ".join(method for method in ("GET", "POST") if _has(request, method))
        return response
    return error_response(InvalidRequest(str(error.detail)))


def _has(request: Request, method: str) -> bool:
    """Whether any route has this path with that method; Starlette's own answer is of the first with the path."""
    scope = {**request.scope, "method": method}
    return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)


async def on_invalid_parameter(_request: Request, error: Exception) -> Response:
    """A parameter of the path or the query that FastAPI refused, in our shape."""
    assert isinstance(error, RequestValidationError), "registered for it"
    problem = error.errors()[0]
    param = str(problem["loc"][-1])
    return error_response(InvalidRequest(f"{param}: {problem['msg']}", param=param))
