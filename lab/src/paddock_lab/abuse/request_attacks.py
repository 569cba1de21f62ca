"""Attacks by well-formed requests that are expensive: many answers, samplers, schemas and long texts."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from paddock_lab.abuse.attack import ANSWERED, Attack, Peer

_MESSAGES = [{"role": "user", "content": "x"}]
_REPETITIVE = "ab " * 500
_LONGEST = 2**20


# ── many answers ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def countless_answers(peer: Peer) -> str:
    """Half a megabyte of prompts, with the largest number of answers to each."""
    return await peer.post({"prompt": ["word " * 400] * 256, "n": 128}, "/v1/completions")


async def many_answers(peer: Peer) -> str:
    return await peer.post({"prompt": ["word " * 20] * 4, "n": 128, "max_tokens": 64}, "/v1/completions")


# ── sampling parameters and stop strings that are expensive for each token (the fake model ignores the former) ────────


async def dry_near_one(peer: Peer) -> str:
    """DRY searches the whole context for repetitions, and with this base the length of a repetition has no limit."""
    body = {
        "prompt": _REPETITIVE,
        "n_predict": 256,
        "dry_multiplier": 0.001,
        "dry_base": 1.0001,
        "dry_allowed_length": 1,
        "dry_penalty_last_n": -1,
        "dry_sequence_breakers": ["\n"],
    }
    return await peer.post(body, "/completion")


async def crafted_stops(peer: Peer) -> str:
    """The text so far is always a possible beginning of every stop string."""
    stops = [_REPETITIVE[: 1000 - number] + "#" for number in range(32)]
    messages = [{"role": "user", "content": f"say: {_REPETITIVE}"}]
    return await peer.post({"messages": messages, "stop": stops, "max_tokens": 512})


async def many_breakers(peer: Peer) -> str:
    """New sequence breakers in each request, so that none of them is cached."""
    breakers = [f"{id(peer)}-{number}" for number in range(64)]
    body = {"prompt": "x", "n_predict": 8, "dry_multiplier": 1, "dry_sequence_breakers": breakers}
    return await peer.post(body, "/completion")


# ── schemas that are expensive to compile, and JSON that is expensive to parse ────────────────────────────────────────


async def giant_schema(peer: Peer) -> str:
    patterns = {f"^{number:04}.*": {"type": "string"} for number in range(1500)}
    return await peer.post({"messages": _MESSAGES, "json_schema": {"type": "object", "patternProperties": patterns}})


async def slow_schema(peer: Peer) -> str:
    """A valid schema that is new in each request: many of them wait to be compiled."""
    names = [f"{id(peer)}_{number}" for number in range(150)]
    one = {"type": "string", "pattern": "^([a-z]{1,40}-){1,8}[0-9]{1,40}$"}
    schema = {"type": "object", "properties": dict.fromkeys(names, one), "required": names}
    return await peer.post({"messages": _MESSAGES, "json_schema": schema, "max_tokens": 4})


async def repeated_names(peer: Peer) -> str:
    """A parser keeps only the last value of a repeated name, so the size does not show afterwards."""
    return await peer.post(b"{" + b'"messages":[{"role":"user","content":"x"}],' * 500_000 + b'"n":1}')


# ── long texts for routes that need no answer from a model ───────────────────────────────────────────────────────────


@cache
def _long_bodies() -> dict[str, bytes]:
    """Encoded once, so that the attackers are not the slow part."""
    bodies: dict[str, dict[str, Any]] = {
        "long": {"content": "word " * (_LONGEST // 5), "with_pieces": True},
        "too long": {"content": "x" * 4 * _LONGEST, "with_pieces": True},
        "tokens": {"tokens": [97] * _LONGEST},
        "chat": {"messages": [{"role": "user", "content": "word " * 100}] * 2000},
    }
    return {name: json.dumps(body).encode() for name, body in bodies.items()}


async def long_tokenize(peer: Peer) -> str:
    return await peer.post(_long_bodies()["long"], "/tokenize")


async def too_long_tokenize(peer: Peer) -> str:
    return await peer.post(_long_bodies()["too long"], "/tokenize")


async def long_detokenize(peer: Peer) -> str:
    return await peer.post(_long_bodies()["tokens"], "/detokenize")


async def long_template(peer: Peer) -> str:
    return await peer.post(_long_bodies()["chat"], "/apply-template")


ANSWERS = (Attack(countless_answers), Attack(many_answers, ANSWERED, copies=4))
SAMPLERS = (Attack(dry_near_one, ANSWERED), Attack(crafted_stops, ANSWERED), Attack(many_breakers, ANSWERED))
SCHEMAS = (Attack(giant_schema), Attack(slow_schema, ANSWERED, copies=12), Attack(repeated_names))
TEXTS = (
    Attack(long_tokenize, ANSWERED, copies=4),
    Attack(too_long_tokenize),
    Attack(long_detokenize, ANSWERED),
    Attack(long_template, ANSWERED),
)
