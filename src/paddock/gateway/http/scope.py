"""Keys in the ASGI scope of a request, by which the layers of the gateway pass on what they know about it."""

from __future__ import annotations

from typing import Final

from fastapi import Request
from starlette.types import Scope

CALLER: Final = "paddock.caller"
"""The authenticated `Caller`."""
KEY_NAME: Final = "paddock.key_name"
"""The name of the caller's API key; empty on a server without keys."""
MODEL: Final = "paddock.model"
"""The name of the model."""
METER: Final = "paddock.meter"
"""The `Meter` of a request to a model."""
JOB: Final = "paddock.job"
"""The job id."""
AUDITED: Final = "paddock.audited"
"""A dict for the audit record, on requests that are audited."""
FOREIGN: Final = "paddock.foreign_page"
"""Set when the request comes from a web page of another origin."""
BODY: Final = "paddock.body"
"""The body, on servers that log prompts."""
GIVEN: Final = "paddock.given_body"
"""The body as it was sent, of a request for a receipt."""
HELD: Final = "paddock.held_body"
"""The body's share of the body budget. It is released when the request ends."""
IGNORED: Final = "paddock.ignored_fields"
"""The header value that names the ignored fields of the body."""
NORMALIZED: Final = "paddock.normalized"
"""The header value that names the normalizers that changed the prompt."""
ERROR_FORMAT: Final = "paddock.error_format"
"""The `ErrorFormat` of the dialect that the path belongs to."""
TRACE_KIND: Final = "paddock.trace_kind"
"""The operation name in traces."""
SEND_EVENT: Final = "paddock.send_event"
"""The server's own `send`: events of a stream need nothing that the middlewares do for a response."""
STATUS: Final = "paddock.status"
"""The status of the response, once it has been sent."""
BATCH: Final = "paddock.batch"
"""The id of the batch that the request is a line of."""
BATCH_CALLER: Final = "paddock.batch_caller"
"""The `Caller` of a line of a batch, who was authenticated when the batch was created."""
BATCH_DATE: Final = "paddock.batch_date"
"""The day on which the batch of a deterministic line was created, for chat templates that print the date."""
IS_STREAM: Final = "paddock.is_stream"
"""Set when the response is a stream of events."""

HEALTH_PATHS: Final = frozenset({"/health", "/v1/health", "/metrics"})
"""Probes: not traced, logged at debug level, and counted apart from other requests."""


def owner_of(request: Request) -> str:
    """The owner that limits apply to: the API key or, on a server without keys, the client's address."""
    return request.scope.get(KEY_NAME) or (f"address {request.client.host}" if request.client is not None else "")


def route_of(scope: Scope) -> str:
    """The path template of the matched route."""
    path: str | None = getattr(scope.get("route"), "path", None)
    return path or ("other" if "endpoint" in scope else "unknown")
