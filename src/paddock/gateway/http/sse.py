"""Server-sent events written straight to the ASGI server, with the client's leaving noticed at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from paddock.gateway.http.disconnect import left

_SILENCE = 10
COMMENT = b": keep-alive\n\n"


class EventStream(Response):
    """Sends what the generator yields. When the client goes away the generator is closed, wherever it waits.

    While nothing comes for `silence` seconds a sign of life is sent, so that nobody in between takes the connection for
    dead; -1: none is.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[bytes], silence: int | None = None, sign_of_life: bytes = COMMENT
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        # Response computed a length for its empty body; a stream has none.
        del self.headers["content-length"]
        self._events = events
        self._silence = _SILENCE if silence is None else silence
        self._sign_of_life = sign_of_life
        self._sent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        send_part = scope.get("paddock.send_part", send)
        sending = asyncio.ensure_future(self._send(send, send_part))
        leaving = asyncio.ensure_future(left(receive))
        commenting = asyncio.ensure_future(self._comment(send_part))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving, commenting):
                task.cancel()  # which does nothing to one that is done
            await asyncio.gather(sending, leaving, commenting, return_exceptions=True)
        if not sending.cancelled() and (error := sending.exception()) is not None:
            raise error

    async def _send(self, send: Send, send_part: Send) -> None:
        async with aclosing(self._events) as events:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for event in events:
                self._sent += 1
                await send_part({"type": "http.response.body", "body": event, "more_body": True})
            self._silence = -1
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _comment(self, send_part: Send) -> None:
        """Beside the events rather than between them: a timer for each event would cost every stream."""
        while self._silence > 0:
            sent = self._sent
            await asyncio.sleep(self._silence)
            if sent == self._sent and self._silence > 0:
                await send_part({"type": "http.response.body", "body": self._sign_of_life, "more_body": True})
