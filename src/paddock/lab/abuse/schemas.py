"""Schemas that are expensive to compile."""

from __future__ import annotations

import asyncio

from paddock.lab.abuse.attack import Attack, Target, ask_json


async def giant_schema(target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    patterns = {f"^{number:04}.*": {"type": "string"} for number in range(1500)}
    schema = {"type": "object", "patternProperties": patterns}
    messages = [{"role": "user", "content": "x"}]
    return await ask_json(target, reader, writer, {"messages": messages, "json_schema": schema})


ATTACKS = (Attack(giant_schema),)
