"""Attacks on what the gateway keeps for each connection: buffered bodies, places, and the check of names."""

from __future__ import annotations

import asyncio
from typing import Final

from paddock_lab.abuse.attack import Attack, Target, read_status
from paddock_lab.client import CHAT

_BODY: Final = 31 * 1024 * 1024
_PIECE: Final = b"x" * (1 << 20)


async def stopped_body(target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """Send nearly all of a large body at once, and then nothing more."""
    writer.write(target.head(CHAT, _BODY + 1))
    answer = asyncio.ensure_future(read_status(reader))
    try:
        for _ in range(_BODY // len(_PIECE)):
            if answer.done():
                break
            writer.write(_PIECE)
            await writer.drain()
        return await answer
    finally:
        answer.cancel()
        await asyncio.gather(answer, return_exceptions=True)


async def watcher(target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """Follow what happens to the models, for as long as the server allows."""
    writer.write(f"{target.address.head('GET', '/models/sse', 'keep-alive')}\r\n".encode())
    status = await read_status(reader)
    while status == "200" and await reader.read(1 << 16):
        pass
    return status


async def sent_ahead(_: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """Thousands of requests in few bytes: what the server makes of each is far larger."""
    writer.write(
        b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"GET /h HTTP/1.1\r\nHost: a\r\n\r\n" * 5000
    )
    while await reader.read(1 << 16):
        pass
    return "closed"


async def rebound_page(_: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """A web page whose own name was made to point to this server."""
    host = "Host: evil.example\r\nOrigin: http://evil.example\r\n"
    writer.write(f"POST /admin/unload HTTP/1.1\r\n{host}Content-Length: 16\r\n\r\n".encode() + b'{"model": "all"}')
    return await read_status(reader)


ATTACKS = (
    Attack(stopped_body, copies=8),
    Attack(watcher, expected=frozenset({"200", "429", "503", "closed"}), copies=100, pause=5),
    Attack(sent_ahead),
    Attack(rebound_page, expected=frozenset({"403", "503", "closed"})),
)
