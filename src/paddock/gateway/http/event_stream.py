"""A response of events, written straight to the ASGI server, that ends as soon as the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from paddock.errors import PaddockError
from paddock.gateway.http.disconnect import run_until_disconnect
from paddock.gateway.http.framing import SSE, Framing
from paddock.gateway.http.responses import error_event
from paddock.gateway.http.scope import IS_STREAM, SEND_EVENT

_KEEP_ALIVE_SECONDS = 10


class EventStream(Response):
    """Sends what the generator yields, and closes the generator when the client disconnects. A `PaddockError` from the
    generator ends the stream with an error event.

    After `keep_alive_seconds` of silence `keep_alive` is sent, so that no proxy closes the connection; -1: never.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        framing: Framing = SSE,
        *,
        keep_alive: bytes | None = None,
        keep_alive_seconds: int | None = None,
    ) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(headers=headers, media_type=framing.media_type)
        # Response computed a length for its empty body; a stream has none.
        del self.headers["content-length"]
        self.events = events
        self.keep_alive = framing.keep_alive if keep_alive is None else keep_alive
        self.silence = _KEEP_ALIVE_SECONDS if keep_alive_seconds is None else keep_alive_seconds
        if not self.keep_alive:
            self.silence = -1
        self._sent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[IS_STREAM] = True
        send_event = scope.get(SEND_EVENT, send)
        pinging = asyncio.ensure_future(self._ping(send_event))
        try:
            sending = await run_until_disconnect(receive, self._send(scope, send, send_event))
        finally:
            pinging.cancel()
            await asyncio.gather(pinging, return_exceptions=True)
        if not sending.cancelled():
            sending.result()

    async def _send(self, scope: Scope, send: Send, send_event: Send) -> None:
        async with aclosing(self.events) as events:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                async for event in events:
                    self._sent += 1
                    await send_event({"type": "http.response.body", "body": event, "more_body": True})
            except PaddockError as error:
                event = error_event(error, scope)
                await send_event({"type": "http.response.body", "body": event, "more_body": True})
            self.silence = -1
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _ping(self, send_event: Send) -> None:
        """A task of its own: a timer for each event would cost every stream."""
        while self.silence > 0:
            sent = self._sent
            await asyncio.sleep(self.silence)
            if sent == self._sent and self.silence > 0:
                await send_event({"type": "http.response.body", "body": self.keep_alive, "more_body": True})
