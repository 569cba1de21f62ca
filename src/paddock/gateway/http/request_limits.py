"""The limits of `protocol.py` for a gateway that does not have the connections itself, as on a cluster.

There Ray's proxies have them, and pass on requests; so heads are measured and requests counted here.
"""

from __future__ import annotations

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from paddock.errors import HeadersTooLarge, PaddockError, URITooLong
from paddock.gateway.http.connection_limits import ConnectionLimits
from paddock.gateway.http.connection_slots import PLACE, Place, Places
from paddock.gateway.http.request_ids import REQUEST_ID, new_request_id
from paddock.gateway.http.responses import error_response

_log = structlog.get_logger(__name__)


class RequestLimits:
    def __init__(self, app: ASGIApp, limits: ConnectionLimits) -> None:
        self._app = app
        self._limits = limits
        self._places = Places(limits.places)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if (problem := too_large(scope, self._limits)) is not None:
            REQUEST_ID.set(request_id := new_request_id())
            _log.info("refused", status=problem.status, reason=problem.message, request_id=request_id)
            await error_response(problem, scope["path"])(scope, receive, send)
            return
        scope[PLACE] = place = Place(self._places)
        try:
            await self._app(scope, receive, send)
        finally:
            place.release()


def too_large(scope: Scope, limits: ConnectionLimits) -> PaddockError | None:
    """What is wrong with the size of a request's head."""
    url = len(scope.get("raw_path") or scope["path"].encode()) + len(scope.get("query_string", b""))
    if url > limits.url_bytes:
        return URITooLong(f"the address has more than {limits.url_bytes} bytes")
    headers = scope["headers"]
    if len(headers) > limits.header_count:
        return HeadersTooLarge(f"there are more than {limits.header_count} headers, which is the limit")
    if sum(len(name) + len(value) for name, value in headers) > limits.header_bytes:
        return HeadersTooLarge(f"the headers have more than {limits.header_bytes} bytes, which is the limit")
    return None
