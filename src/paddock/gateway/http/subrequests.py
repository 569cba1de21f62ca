"""Requests that a route sends to other routes of the same application, with the headers of its own caller."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fastapi import Request
from starlette.types import Message

_KEPT = frozenset({"type", "asgi", "http_version", "scheme", "server", "client", "root_path", "state", "extensions"})
_OF_THE_BODY = frozenset({b"content-length", b"content-type", b"content-encoding", b"transfer-encoding", b"expect"})


@dataclass(slots=True)
class SubResponse:
    status: int = 0
    body: bytes = b""


async def post_json(request: Request, path: str, body: bytes) -> SubResponse:
    """The response to a POST request. The key, the limits and the log apply to it as to any other request."""
    path = request.app.state.api_prefix + path
    headers = [header for header in request.scope["headers"] if header[0] not in _OF_THE_BODY]
    headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    scope = {name: value for name, value in request.scope.items() if name in _KEPT}
    scope |= {
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
    }
    unread = [body]
    response = SubResponse()

    async def receive() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        await asyncio.Future()  # the request is cancelled if the client disconnects
        raise AssertionError("never resumed")

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            response.status = message["status"]
        elif message["type"] == "http.response.body":
            response.body += message.get("body", b"")

    await request.app(scope, receive, send)
    return response
