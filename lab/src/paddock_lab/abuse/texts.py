"""Questions about long texts, which need no answer from a model but much work."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from typing import Any

from paddock_lab.abuse.attack import ANSWERED, Attack, Target, ask

_LONGEST = 2**20


@cache
def _bodies() -> dict[str, bytes]:
    """Encoded once: the attackers must not be what is slow."""
    messages = [{"role": "user", "content": "word " * 100}] * 2000
    bodies: dict[str, dict[str, Any]] = {
        "long": {"content": "word " * (_LONGEST // 5), "with_pieces": True},
        "too long": {"content": "x" * 4 * _LONGEST, "with_pieces": True},
        "tokens": {"tokens": [97] * _LONGEST},
        "chat": {"messages": messages},
    }
    return {name: json.dumps(body).encode() for name, body in bodies.items()}


async def long_tokenize(target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    return await ask(target, reader, writer, _bodies()["long"], "/tokenize")


async def too_long_tokenize(target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    return await ask(target, reader, writer, _bodies()["too long"], "/tokenize")


async def long_detokenize(target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    return await ask(target, reader, writer, _bodies()["tokens"], "/detokenize")


async def long_template(target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    return await ask(target, reader, writer, _bodies()["chat"], "/apply-template")


ATTACKS = (
    Attack(long_tokenize, ANSWERED, copies=4),
    Attack(too_long_tokenize),
    Attack(long_detokenize, ANSWERED),
    Attack(long_template, ANSWERED),
)
