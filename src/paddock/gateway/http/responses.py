"""Bodies and errors: the one renderer of the error tree, and JSON as fast as it gets."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Match

from paddock.errors import InvalidRequest, MethodNotAllowed, NotFound, PaddockError
from paddock.gateway.http.failure_log import note_failure
from paddock.gateway.http.request_ids import REQUEST_ID

_encode = msgspec.json.Encoder().encode


class JSON(Response):
    """A response from a msgspec struct or anything it can encode."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return _encode(content)


# Anthropic's clients know errors by other types, with another type around them.
_ANTHROPIC = "/v1/messages"
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(error: PaddockError, path: str) -> dict[str, Any]:
    """An error as the clients of that path know errors."""
    body: dict[str, Any] = error.body()
    if path.startswith(_ANTHROPIC):
        kind = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
        body = {"type": "error", "error": body["error"] | {"type": kind}}
    return body | {"request_id": REQUEST_ID.get()}


def error_response(error: PaddockError, path: str) -> Response:
    note_failure(error, in_stream=False)
    headers: dict[str, str] = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSON(error_body(error, path), status_code=error.status, headers=headers)


def error_event(error: PaddockError, path: str = "") -> bytes:
    """The same error inside a stream that has already begun."""
    note_failure(error, in_stream=True)
    return b"event: error\ndata: " + _encode(error_body(error, path)) + b"\n\n"


async def on_paddock_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PaddockError), "registered for it"
    return error_response(error, request.url.path)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own 404 and 405, in our shape."""
    assert isinstance(error, HTTPException), "registered for it"
    where = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return error_response(NotFound(f"there is no {where} here"), request.url.path)
    if error.status_code == 405:
        response = error_response(MethodNotAllowed(f"{where} is not allowed"), request.url.path)
        response.headers["Allow"] = ", ".join(method for method in ("GET", "POST") if _has(request, method))
        return response
    return error_response(InvalidRequest(str(error.detail)), request.url.path)


def _has(request: Request, method: str) -> bool:
    """Whether any route has this path with that method; Starlette's own answer is of the first with the path."""
    scope = {**request.scope, "method": method}
    return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)


async def on_invalid_parameter(request: Request, error: Exception) -> Response:
    """A parameter of the path or the query that FastAPI refused, in our shape."""
    assert isinstance(error, RequestValidationError), "registered for it"
    problem = error.errors()[0]
    param = str(problem["loc"][-1])
    return error_response(InvalidRequest(f"{param}: {problem['msg']}", param=param), request.url.path)
