"""What is told of an answer beside its text."""

from __future__ import annotations

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "abort"]


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class Timings(msgspec.Struct, frozen=True):
    """Seconds from the first step with a part of the prompt to the first token, and from there on."""

    prompt: float = 0.0
    generation: float = 0.0
    drafted: int = 0
    """Tokens that a draft model guessed."""
    accepted: int = 0
    """Those that it guessed right."""


class PromptProgress(msgspec.Struct, frozen=True, array_like=True):
    """How much of a prompt has been read, what of it was known before, and the seconds since its first step."""

    total: int
    cached: int
    processed: int
    seconds: float


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """The log-probability of a token, and of the likeliest ones in its place."""

    chosen: float
    top: list[tuple[int, float]]


class TextLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """The same for a reader: each token as its id and its bytes."""

    token: int
    piece: bytes
    logprob: float
    top: list[tuple[int, bytes, float]]


class CallDelta(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """A part of a tool call: the first of each has its id and its name, the others more of the arguments' JSON."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    withdrawn: bool = False
    """It cannot be understood after all. Its text comes as content, and nothing more of it."""
