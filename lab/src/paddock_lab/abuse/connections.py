"""Connections that cost the server something and bring nothing."""

from __future__ import annotations

import asyncio

from paddock_lab.abuse.attack import TIMEOUTS, Attack, Target, send_until_answered


async def slow_head(_: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    writer.write(b"GET /health HTTP/1.1\r\nX-Patience: ")
    return await send_until_answered(reader, writer, b"x", 0.2)


async def endless_header(_: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    writer.write(b"GET /health HTTP/1.1\r\nX: ")
    return await send_until_answered(reader, writer, b"x" * 65536)


async def never_reads(_: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """Ask for a long response again and again, and read none."""
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
    try:
        await asyncio.wait_for(writer.drain(), TIMEOUTS["write_timeout"] * 2)
        await asyncio.sleep(TIMEOUTS["write_timeout"])
    except TimeoutError:
        pass
    return "closed"


async def held_connection(_: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """Open a connection, send nothing, and wait until the server closes it."""
    await reader.read()
    return "closed"


ATTACKS = (Attack(slow_head), Attack(endless_header), Attack(never_reads))


def held(connections: int) -> Attack:
    return Attack(held_connection, copies=connections, pause=0.5)
