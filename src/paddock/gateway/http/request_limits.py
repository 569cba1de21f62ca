"""The limits of `connection.py` for a gateway behind Ray's HTTP proxies, which own the connections.

Request heads are measured and requests are counted here instead.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from paddock.config import ServerSettings
from paddock.errors import HeadersTooLarge, PaddockError, URITooLong
from paddock.gateway.http.connection_slots import REQUEST_ENTRY, ConnectionLimits, RequestEntry, RequestTable
from paddock.gateway.http.request_context import log_refusal
from paddock.gateway.http.responses import ErrorFormats, error_response
from paddock.gateway.http.scope import ERROR_FORMAT


class RequestLimits:
    def __init__(self, app: ASGIApp, limits: ConnectionLimits, error_formats: ErrorFormats | None = None) -> None:
        self._app = app
        self._settings = limits.settings
        self._error_formats = error_formats or ErrorFormats({})
        self._requests = RequestTable(limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if (problem := too_large(scope, self._settings)) is not None:
            log_refusal(problem)
            scope[ERROR_FORMAT] = self._error_formats.of(scope["path"])
            await error_response(problem, scope)(scope, receive, send)
            return
        scope[REQUEST_ENTRY] = entry = RequestEntry(self._requests)
        try:
            await self._app(scope, receive, send)
        finally:
            entry.release()


def too_large(scope: Scope, settings: ServerSettings) -> PaddockError | None:
    """The limit that the head of the request exceeds, if any."""
    url = len(scope.get("raw_path") or scope["path"].encode()) + len(scope.get("query_string", b""))
    if url > settings.max_url_bytes:
        return URITooLong(f"the URL has {url} bytes; the limit is {settings.max_url_bytes}")
    headers = scope["headers"]
    if len(headers) > settings.max_header_count:
        return HeadersTooLarge(f"the request has {len(headers)} headers; the limit is {settings.max_header_count}")
    if (size := sum(len(name) + len(value) for name, value in headers)) > settings.max_header_bytes:
        return HeadersTooLarge(f"the headers have {size} bytes; the limit is {settings.max_header_bytes}")
    return None
