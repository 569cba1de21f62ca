"""Attacks on connections and buffers: slow, endless and oversized requests, and responses that are never read."""

from __future__ import annotations

import asyncio
from typing import Final

from paddock_lab.abuse.attack import TIMEOUTS, Attack, Peer
from paddock_lab.client import CHAT

_LARGE_BODY: Final = 31 * 1024 * 1024
_PIECE: Final = b"x" * (1 << 20)


# ── bodies that are slow, huge, wide or deep ─────────────────────────────────────────────────────────────────────────


async def slow_body(peer: Peer) -> str:
    peer.send_head(CHAT, 1_000_000)
    return await peer.send_until_answered(b"[", pause=0.2)


async def huge_body(peer: Peer) -> str:
    peer.writer.write(f"{peer.address.head('POST', CHAT, 'close')}Transfer-Encoding: chunked\r\n\r\n".encode())
    return await peer.send_until_answered(b"10000\r\n" + b"x" * 65536 + b"\r\n")


async def wide_body(peer: Peer) -> str:
    return await peer.post(b'{"messages": [' + b"1," * 1_000_000 + b"1]}")


async def deep_body(peer: Peer) -> str:
    return await peer.post(b'{"messages": ' + b"[" * 2_000_000)


# ── connections without a useful request ─────────────────────────────────────────────────────────────────────────────


async def slow_head(peer: Peer) -> str:
    peer.writer.write(b"GET /health HTTP/1.1\r\nX-Patience: ")
    return await peer.send_until_answered(b"x", pause=0.2)


async def endless_header(peer: Peer) -> str:
    peer.writer.write(b"GET /health HTTP/1.1\r\nX: ")
    return await peer.send_until_answered(b"x" * 65536)


async def never_reads(peer: Peer) -> str:
    """Request a long response many times, and read none of them."""
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
    peer.writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
    try:
        await asyncio.wait_for(peer.writer.drain(), TIMEOUTS["write_timeout"] * 2)
        await asyncio.sleep(TIMEOUTS["write_timeout"])
    except TimeoutError:
        pass
    return "closed"


async def held_connection(peer: Peer) -> str:
    """Open a connection, send nothing, and wait until the server closes it."""
    await peer.reader.read()
    return "closed"


# ── what the gateway keeps for each connection ───────────────────────────────────────────────────────────────────────


async def stopped_body(peer: Peer) -> str:
    """Send nearly all of a large body at once, and then nothing more."""
    peer.send_head(CHAT, _LARGE_BODY + 1)
    return await peer.send_until_answered(_PIECE, limit=_LARGE_BODY // len(_PIECE))


async def watcher(peer: Peer) -> str:
    """Follow the events of the models for as long as the server allows."""
    peer.writer.write(f"{peer.address.head('GET', '/models/sse', 'keep-alive')}\r\n".encode())
    status = await peer.read_status()
    while status == "200" and await peer.reader.read(1 << 16):
        pass
    return status


async def sent_ahead(peer: Peer) -> str:
    """Thousands of pipelined requests in few bytes: the server's data for each is far larger."""
    peer.writer.write(
        b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"GET /h HTTP/1.1\r\nHost: a\r\n\r\n" * 5000
    )
    await peer.read_all()
    return "closed"


async def rebound_page(peer: Peer) -> str:
    """DNS rebinding: a web page whose host name points to this server."""
    host = "Host: evil.example\r\nOrigin: http://evil.example\r\n"
    peer.writer.write(f"POST /admin/unload HTTP/1.1\r\n{host}Content-Length: 16\r\n\r\n".encode() + b'{"model": "all"}')
    return await peer.read_status()


BODIES = (Attack(slow_body), Attack(huge_body), Attack(wide_body), Attack(deep_body))
CONNECTIONS = (Attack(slow_head), Attack(endless_header), Attack(never_reads))
EDGE = (
    Attack(stopped_body, copies=8),
    Attack(watcher, expected=frozenset({"200", "429", "503", "closed"}), copies=100, pause=5),
    Attack(sent_ahead),
    Attack(rebound_page, expected=frozenset({"403", "503", "closed"})),
)


def held(connections: int) -> Attack:
    return Attack(held_connection, copies=connections, pause=0.5)
