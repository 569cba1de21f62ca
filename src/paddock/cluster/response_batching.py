"""Joins small parts of a response body: Ray's HTTP proxies cost more per part than per byte."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_MOST = 64 * 1024
"""Bytes buffered for a slow proxy; then the writer waits."""


class BatchedResponses:
    """Joins what is written within one turn of the event loop. Removes our x-request-id header, because the proxies add
    their own.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(send)
        try:
            await self._app(scope, receive, body.send)
        finally:
            body.close()


class _Body:
    def __init__(self, send: Send) -> None:
        self._send = send
        self._kept = bytearray()
        self._sending: asyncio.Task[None] | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [header for header in message["headers"] if header[0] != b"x-request-id"]
        elif message["type"] == "http.response.body":
            self._kept += message.get("body", b"")
            if message.get("more_body", False):
                await self._soon()
                return
            if self._sending is not None:
                await self._sending
            message = {**message, "body": bytes(self._kept)}
            self._kept.clear()
        await self._send(message)

    async def _soon(self) -> None:
        if self._sending is not None and self._sending.done():
            self._sending.result()  # raises its error, such as a closed connection
            self._sending = None
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._flush())
        if len(self._kept) > _MOST:
            await asyncio.shield(self._sending)

    async def _flush(self) -> None:
        while self._kept:
            body = bytes(self._kept)
            self._kept.clear()
            await self._send({"type": "http.response.body", "body": body, "more_body": True})

    def close(self) -> None:
        if self._sending is not None:
            self._sending.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._sending.cancel()
