"""The outermost layer: a request id, one log line per request, and no exception that reaches the client raw."""

from __future__ import annotations

import time
from typing import Any

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paddock.errors import PaddockError
from paddock.gateway.auth.audit import AUDITED, AuditLog, Record, detail_of, now, result_of
from paddock.gateway.auth.caller import CALLER, MODEL, NOBODY
from paddock.gateway.auth.metering import METER
from paddock.gateway.generation.job_ids import HEADER, JOB
from paddock.gateway.http.bodies import BODY, HELD, IGNORED
from paddock.gateway.http.failure_log import FAILURE, Failure
from paddock.gateway.http.request_ids import REQUEST_ID, request_id_from
from paddock.gateway.http.responses import error_event, error_response

_log = structlog.get_logger(__name__)
_QUIET = frozenset({"/health", "/v1/health", "/metrics"})
_LONGEST_PROMPT = 100_000
_LONGEST_PATH = 200


class AccessLog:
    """`headers` are those that every response has. With `log_prompts` the bodies of requests are logged too."""

    def __init__(
        self, app: ASGIApp, headers: dict[str, str], *, log_prompts: bool, audit: AuditLog | None = None
    ) -> None:
        self._app = app
        self._headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        self._log_prompts = log_prompts
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_from(Headers(scope=scope).get("x-request-id"))
        REQUEST_ID.set(request_id)
        FAILURE.set(failure := Failure())
        begun = time.perf_counter()
        status = 0
        finished = False

        async def watch(message: Message) -> None:
            nonlocal status, finished
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                said = {name for name, _ in message["headers"]}
                headers.raw.extend(header for header in self._headers if header[0] not in said)
                if ignored := scope.get(IGNORED):
                    headers["x-paddock-ignored-fields"] = ignored
                if job := scope.get(JOB):
                    headers[HEADER] = job
                if METER in scope:
                    scope[METER].answered(status)
                    headers.update(scope[METER].headers())
            elif message["type"] == "http.response.body":
                finished = not message.get("more_body", False)
            await send(message)

        # The parts of a stream need none of what the layers in between do for a response.
        scope["paddock.send_part"] = send
        if self._log_prompts:
            scope[BODY] = b""
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
                scope[METER].close()
            if HELD in scope:
                scope[HELD].release()
            if self._audit is not None and AUDITED in scope:
                self._audit.record(_audited(scope, status, request_id))
            level = failure.level
            write = getattr(_log, "debug" if level != "error" and scope["path"] in _QUIET else level)
            write(
                "request",
                method=scope["method"],
                path=scope["path"],
                status=status or "client left",
                duration_ms=round((time.perf_counter() - begun) * 1000, 1),
                request_id=request_id,
                **_told(failure),
                **_more(scope),
            )


def _audited(scope: Scope, status: int, request_id: str) -> Record:
    client = scope.get("client")
    return Record(
        time=now(),
        action=f"{scope['method']} {scope['path'][:_LONGEST_PATH]}",
        key=scope.get(CALLER, NOBODY).name or None,
        address=client[0] if client else "",
        result=result_of(status),
        status=status,
        detail=detail_of(scope[AUDITED].get("body", b"")),
        request_id=request_id,
    )


def _told(failure: Failure) -> dict[str, Any]:
    """The error's code; and why, where it is the server's."""
    if failure.error is None:
        return {}
    fields = {"error": failure.error.code}
    return fields if failure.level == "info" else fields | {"reason": failure.error.message}


def _more(scope: Scope) -> dict[str, Any]:
    """Who asked and what became of it, as far as it came to that."""
    fields: dict[str, Any] = {}
    if client := scope.get("client"):
        fields["client"] = client[0]
    if name := scope.get(CALLER, NOBODY).name:
        fields["key"] = name
    if model := scope.get(MODEL):
        fields["model"] = model
    if job := scope.get(JOB):
        fields["job_id"] = job
    if METER in scope:
        fields |= scope[METER].told()
    if body := scope.get(BODY):
        fields["body"] = body[:_LONGEST_PROMPT].decode("utf-8", "replace")
    return fields
