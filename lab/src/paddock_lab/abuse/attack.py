"""What all attacks share: how one is described, and raw HTTP for requests that no client library would send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from paddock_lab.client import CHAT, Address

TIMEOUTS: Final = {"header_timeout": 3, "body_timeout": 3, "write_timeout": 5}
"""Of the server under test, in seconds: shorter than the defaults, so that a short run sees them expire."""
REFUSALS: Final = frozenset({"400", "404", "408", "413", "414", "429", "431", "503", "closed"})
ANSWERED: Final = REFUSALS | {"200"}
"""For requests that are legitimate one by one: they may be answered, as long as nobody else waits for them."""


@dataclass(frozen=True)
class Target:
    """The server under attack."""

    address: Address
    """With the attacker's API key."""

    def head(self, path: str, length: int, method: str = "POST") -> bytes:
        head = self.address.head(method, path, "close")
        return f"{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n".encode()


@dataclass(frozen=True)
class Attack:
    """`act` is repeated on new connections for as long as the storm lasts. It returns the status of the response, or
    `closed`.
    """

    act: Callable[[Target, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[str]]
    expected: frozenset[str] = REFUSALS
    """Any other outcome is a violation."""
    copies: int = 2
    """How many run at once."""
    pause: float = 0.2
    """Seconds between two repetitions."""

    @property
    def name(self) -> str:
        return self.act.__name__.replace("_", " ")


async def ask(
    target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes, path: str = CHAT
) -> str:
    """Send one whole request, read the whole response, return its status."""
    writer.write(target.head(path, len(body)) + body)
    status = await read_status(reader)
    while await reader.read(1 << 16):
        pass
    return status


async def ask_json(
    target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: dict[str, Any], path: str = CHAT
) -> str:
    return await ask(target, reader, writer, json.dumps(body).encode(), path)


async def send_until_answered(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes, pause: float = 0.0
) -> str:
    """Send the same data again and again until there is a response; return its status."""
    answer = asyncio.ensure_future(read_status(reader))
    try:
        while not answer.done() and not writer.is_closing():
            writer.write(data)
            await writer.drain()
            await asyncio.wait({answer}, timeout=pause)
        return await answer
    finally:
        answer.cancel()
        await asyncio.gather(answer, return_exceptions=True)


async def read_status(reader: asyncio.StreamReader) -> str:
    line = await reader.readline()
    return line.split()[1].decode() if line else "closed"
