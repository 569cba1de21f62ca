"""The outermost layer: a request id, one log line per request, and no exception that reaches the client raw."""

from __future__ import annotations

import secrets
import time

import structlog
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paddock.errors import PaddockError
from paddock.gateway.bodies import IGNORED
from paddock.gateway.metering import METER
from paddock.gateway.responses import error_event, error_response

_log = structlog.get_logger(__name__)
_QUIET = frozenset({"/health", "/v1/health", "/metrics"})


class AccessLog:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req_{secrets.token_hex(8)}"
        begun = time.perf_counter()
        status = 0
        finished = False

        async def watch(message: Message) -> None:
            nonlocal status, finished
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                if ignored := scope.get(IGNORED):
                    headers["x-paddock-ignored-fields"] = ignored
                if METER in scope:
                    headers.update(scope[METER].headers())
            elif message["type"] == "http.response.body":
                finished = not message.get("more_body", False)
            await send(message)

        # The parts of a stream need none of what the layers in between do for a response.
        scope["paddock.send_part"] = send
        try:
            await self._app(scope, receive, watch)
        except Exception:
            _log.exception("unhandled error", request_id=request_id, path=scope["path"])
            error = PaddockError(f"something went wrong inside the server; its log has it as {request_id}")
            if status == 0:
                await error_response(error, scope["path"])(scope, receive, watch)
            elif not finished:
                await watch(
                    {"type": "http.response.body", "body": error_event(error, scope["path"]), "more_body": False}
                )
        finally:
            if METER in scope:
                scope[METER].close(status)
            write = _log.debug if scope["path"] in _QUIET else _log.info
            write(
                "request",
                method=scope["method"],
                path=scope["path"],
                status=status or "client left",
                duration_ms=round((time.perf_counter() - begun) * 1000, 1),
                request_id=request_id,
            )
