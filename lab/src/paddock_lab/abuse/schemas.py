"""Schemas that are expensive to compile, and JSON that is expensive to read."""

from __future__ import annotations

import asyncio

from paddock_lab.abuse.attack import ANSWERED, Attack, Target, ask, ask_json

_MESSAGES = [{"role": "user", "content": "x"}]


async def giant_schema(target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    patterns = {f"^{number:04}.*": {"type": "string"} for number in range(1500)}
    schema = {"type": "object", "patternProperties": patterns}
    return await ask_json(target, reader, writer, {"messages": _MESSAGES, "json_schema": schema})


async def slow_schema(target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """One that is accepted, and another each time: many of them wait to be compiled."""
    names = [f"{id(writer)}_{number}" for number in range(150)]
    one = {"type": "string", "pattern": "^([a-z]{1,40}-){1,8}[0-9]{1,40}$"}
    schema = {"type": "object", "properties": dict.fromkeys(names, one), "required": names}
    return await ask_json(target, reader, writer, {"messages": _MESSAGES, "json_schema": schema, "max_tokens": 4})


async def repeated_names(target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """A parser keeps the last of each, so that nothing of it is seen afterwards."""
    return await ask(
        target, reader, writer, b"{" + b'"messages":[{"role":"user","content":"x"}],' * 500_000 + b'"n":1}'
    )


ATTACKS = (Attack(giant_schema), Attack(slow_schema, ANSWERED, copies=12), Attack(repeated_names))
