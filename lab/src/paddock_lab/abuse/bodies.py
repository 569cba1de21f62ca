"""Bodies that are slow, huge, wide or deep."""

from __future__ import annotations

import asyncio

from paddock_lab.abuse.attack import Attack, Target, ask, send_until_answered
from paddock_lab.client import CHAT


async def slow_body(target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    writer.write(target.head(CHAT, 1_000_000))
    return await send_until_answered(reader, writer, b"[", 0.2)


async def huge_body(target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    writer.write(f"{target.address.head('POST', CHAT, 'close')}Transfer-Encoding: chunked\r\n\r\n".encode())
    return await send_until_answered(reader, writer, b"10000\r\n" + b"x" * 65536 + b"\r\n")


async def wide_body(target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    return await ask(target, reader, writer, b'{"messages": [' + b"1," * 1_000_000 + b"1]}")


async def deep_body(target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    return await ask(target, reader, writer, b'{"messages": ' + b"[" * 2_000_000)


ATTACKS = (Attack(slow_body), Attack(huge_body), Attack(wide_body), Attack(deep_body))
