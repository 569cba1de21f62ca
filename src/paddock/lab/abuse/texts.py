"""Questions about long texts, which need no answer from a model but much work."""

from __future__ import annotations

import asyncio

from paddock.lab.abuse.attack import ANSWERED, Attack, Target, ask_json

_LONGEST = 2**20


async def long_tokenize(target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    body = {"content": "word " * (_LONGEST // 5), "with_pieces": True}
    return await ask_json(target, reader, writer, body, "/tokenize")


async def too_long_tokenize(target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    return await ask_json(target, reader, writer, {"content": "x" * 4 * _LONGEST, "with_pieces": True}, "/tokenize")


async def long_detokenize(target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    return await ask_json(target, reader, writer, {"tokens": [97] * _LONGEST}, "/detokenize")


async def long_template(target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    messages = [{"role": "user", "content": "word " * 100}] * 2000
    return await ask_json(target, reader, writer, {"messages": messages}, "/apply-template")


ATTACKS = (
    Attack(long_tokenize, ANSWERED, copies=4),
    Attack(too_long_tokenize),
    Attack(long_detokenize, ANSWERED),
    Attack(long_template, ANSWERED),
)
