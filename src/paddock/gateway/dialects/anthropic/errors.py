"""Errors as Anthropic's clients expect them: other types, in an object with a type of its own."""

from __future__ import annotations

from typing import Any, Final

from paddock.errors import PaddockError
from paddock.gateway.http.responses import error_body

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def anthropic_error_body(error: PaddockError) -> dict[str, Any]:
    body = error_body(error)
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error"} | body | {"error": body["error"] | {"type": kind}}
