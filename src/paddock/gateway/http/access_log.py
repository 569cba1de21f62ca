"""The outermost layer: request ids, one log line per request, and an error response for unhandled exceptions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paddock.errors import ClientLeft, PaddockError
from paddock.gateway.http.request_context import FAILURE, REQUEST_ID, Failure, request_id_from
from paddock.gateway.http.request_counts import HTTPCounts
from paddock.gateway.http.responses import ErrorFormats, error_event, error_response
from paddock.gateway.http.scope import (
    BATCH,
    BODY,
    ERROR_FORMAT,
    HEALTH_PATHS,
    HELD,
    IGNORED,
    JOB,
    KEY_NAME,
    METER,
    MODEL,
    NORMALIZED,
    SEND_EVENT,
    STATUS,
)

_LOGGED: Final = {"key": KEY_NAME, "model": MODEL, "job_id": JOB, "batch": BATCH}
"""Fields of the log line, and where the scope has them."""
JOB_HEADER: Final = "x-job-id"
_log = structlog.get_logger(__name__)
_LONGEST_PROMPT = 100_000


class AccessLog:
    """`headers` are added to every response. `on_end` is called with the scope and the status of each request; a status
    of 0 means that there was no response. With `log_prompts` the bodies of requests are logged too.
    """

    def __init__(
        self,
        app: ASGIApp,
        headers: dict[str, str],
        error_formats: ErrorFormats,
        counts: HTTPCounts,
        *,
        log_prompts: bool,
        on_end: Callable[[Scope, int], None] | None = None,
    ) -> None:
        self._app = app
        self._headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        self._error_formats = error_formats
        self._counts = counts
        self._log_prompts = log_prompts
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_from(Headers(scope=scope).get("x-request-id"))
        REQUEST_ID.set(request_id)
        FAILURE.set(failure := Failure())
        scope[ERROR_FORMAT] = self._error_formats.of(scope["path"])
        scope[SEND_EVENT] = send
        if self._log_prompts:
            scope[BODY] = b""
        begun = time.perf_counter()
        finished = False

        async def watch(message: Message) -> None:
            nonlocal finished
            if message["type"] == "http.response.start":
                self._counts.started(scope, message["status"])
                self._add_headers(scope, MutableHeaders(scope=message), request_id)
            elif message["type"] == "http.response.body":
                finished = not message.get("more_body", False)
            await send(message)

        self._counts.in_progress += 1
        try:
            await self._app(scope, receive, watch)
        except Exception:
            _log.exception("unhandled error", request_id=request_id, path=scope["path"])
            error = PaddockError(f"internal error; the server log has the details under {request_id}")
            if STATUS not in scope:
                await error_response(error, scope)(scope, receive, watch)
            elif not finished:
                await watch({"type": "http.response.body", "body": error_event(error, scope), "more_body": False})
        finally:
            seconds = time.perf_counter() - begun
            self._counts.ended(scope, seconds)
            self._end(scope, seconds, request_id, failure)

    def _add_headers(self, scope: Scope, headers: MutableHeaders, request_id: str) -> None:
        present = {name for name, _ in headers.raw}
        headers.raw.extend(header for header in self._headers if header[0] not in present)
        headers["x-request-id"] = request_id
        if ignored := scope.get(IGNORED):
            headers["x-paddock-ignored-fields"] = ignored
        if normalized := scope.get(NORMALIZED):
            headers["x-paddock-normalized"] = normalized
        if job := scope.get(JOB):
            headers[JOB_HEADER] = job
        if METER in scope:
            if scope[STATUS] >= 400 and scope[STATUS] != ClientLeft.status:
                scope[METER].failed()
            headers.update(scope[METER].headers())

    def _end(self, scope: Scope, seconds: float, request_id: str, failure: Failure) -> None:
        """Release what the request holds, and write its line."""
        status = scope.get(STATUS, 0)
        if METER in scope:
            scope[METER].close()
        if HELD in scope:
            scope[HELD].release()
        if self._on_end is not None:
            self._on_end(scope, status)
        level = failure.level
        write = getattr(_log, "debug" if level != "error" and scope["path"] in HEALTH_PATHS else level)
        write(
            "request",
            method=scope["method"],
            path=scope["path"],
            status=status or "client left",
            duration_ms=round(seconds * 1000, 1),
            request_id=request_id,
            **_error_fields(failure),
            **_request_fields(scope),
        )


def _error_fields(failure: Failure) -> dict[str, Any]:
    """The error's code, and its message unless the client caused the error."""
    if failure.error is None:
        return {}
    fields = {"error": failure.error.code}
    return fields if failure.level == "info" else fields | {"reason": failure.error.message}


def _request_fields(scope: Scope) -> dict[str, Any]:
    client = scope.get("client")
    fields: dict[str, Any] = {"client": client[0]} if client else {}
    fields |= {name: scope[key] for name, key in _LOGGED.items() if scope.get(key)}
    if METER in scope:
        fields |= scope[METER].log_fields()
    if body := scope.get(BODY):
        fields["body"] = body[:_LONGEST_PROMPT].decode("utf-8", "replace")
    return fields
