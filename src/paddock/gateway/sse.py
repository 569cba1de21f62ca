"""Server-sent events written straight to the ASGI server, with the client's leaving noticed at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from paddock.gateway.listening import left


class EventStream(Response):
    """Sends what the generator yields. When the client goes away the generator is closed, wherever it waits."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        # Response computed a length for its empty body; a stream has none.
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send, scope.get("paddock.send_part", send)))
        leaving = asyncio.ensure_future(left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not sending.done():
                sending.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
        if not sending.cancelled() and (error := sending.exception()) is not None:
            raise error

    async def _send(self, send: Send, send_part: Send) -> None:
        async with aclosing(self._events) as events:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for event in events:
                await send_part({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
