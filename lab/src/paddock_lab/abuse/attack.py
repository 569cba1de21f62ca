"""An attack, and raw HTTP for requests that no client library would send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from paddock_lab.client import CHAT, Address

TIMEOUTS: Final = {"header_timeout": 3, "body_timeout": 3, "write_timeout": 5}
"""Settings of the server under test, in seconds: shorter than the defaults, so that they expire in a short run."""
REFUSALS: Final = frozenset({"400", "404", "408", "413", "414", "429", "431", "503", "closed"})
ANSWERED: Final = REFUSALS | {"200"}
"""For valid requests: they may be answered if no other client waits for them."""


@dataclass(frozen=True)
class Peer:
    """One connection of an attacker. Its methods return the status of the response, or `closed`."""

    address: Address
    """With the attacker's API key."""
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send_head(self, path: str, length: int) -> None:
        head = self.address.head("POST", path, "close")
        self.writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n".encode())

    async def post(self, body: bytes | dict[str, Any], path: str = CHAT) -> str:
        """Send one request and read the whole response."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_head(path, len(data))
        self.writer.write(data)
        return await self.read_all()

    async def read_status(self) -> str:
        line = await self.reader.readline()
        return line.split()[1].decode() if line else "closed"

    async def read_all(self) -> str:
        status = await self.read_status()
        while await self.reader.read(1 << 16):
            pass
        return status

    async def send_until_answered(self, data: bytes, *, pause: float = 0.0, limit: int | None = None) -> str:
        """Send the same data until a response comes, at most `limit` times. Then wait for the response."""
        async with self._response() as response:
            sent = 0
            while not response.done() and not self.writer.is_closing() and (limit is None or sent < limit):
                self.writer.write(data)
                await self.writer.drain()
                await asyncio.wait({response}, timeout=pause)
                sent += 1
            return await response

    @asynccontextmanager
    async def _response(self) -> AsyncIterator[asyncio.Future[str]]:
        response = asyncio.ensure_future(self.read_status())
        try:
            yield response
        finally:
            response.cancel()
            await asyncio.gather(response, return_exceptions=True)


@dataclass(frozen=True)
class Attack:
    """`act` is repeated on new connections until the phase ends."""

    act: Callable[[Peer], Awaitable[str]]
    expected: frozenset[str] = REFUSALS
    """Any other outcome is a violation."""
    copies: int = 2
    """How many run at the same time."""
    pause: float = 0.2
    """Seconds between two repetitions."""

    @property
    def name(self) -> str:
        return self.act.__name__.replace("_", " ")
