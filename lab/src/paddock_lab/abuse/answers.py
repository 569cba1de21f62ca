"""Few requests that ask for many answers."""

from __future__ import annotations

import asyncio

from paddock_lab.abuse.attack import ANSWERED, Attack, Target, ask_json

_COMPLETIONS = "/v1/completions"


async def countless_answers(target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """Half a megabyte of prompts, and as many answers to each as may be asked for."""
    body = {"prompt": ["word " * 400] * 256, "n": 128}
    return await ask_json(target, reader, writer, body, _COMPLETIONS)


async def many_answers(target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    body = {"prompt": ["word " * 20] * 4, "n": 128, "max_tokens": 64}
    return await ask_json(target, reader, writer, body, _COMPLETIONS)


ATTACKS = (Attack(countless_answers), Attack(many_answers, ANSWERED, copies=4))
