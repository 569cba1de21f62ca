"""The most that a request may use, estimated before it runs: concurrent answers and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from paddock.errors import InvalidRequest
from paddock.gateway.http.sizes import MOST_ANSWERS_IN_ALL
from paddock.types import GenerateRequest, MixedPrompt, PairPrompt, Prompt, TokenPrompt

USUAL_ANSWER: Final = 1024
"""Tokens that are reserved for a single answer without `max_tokens`. A longer answer puts its key into debt. Each of
several such answers reserves the model's whole context.
"""
_BYTES_PER_TOKEN = 4


def answers_of(request: GenerateRequest, prompts: int) -> int:
    """The number of answers to all prompts of one HTTP request. Raises `InvalidRequest` if there are too many."""
    answers = request.n * prompts
    if answers > MOST_ANSWERS_IN_ALL:
        reason = f"{prompts} prompts with n={request.n} make {answers} answers; the limit is {MOST_ANSWERS_IN_ALL}"
        raise InvalidRequest(reason, param="n")
    return answers


def tokens_of(requests: Sequence[GenerateRequest], n_ctx: int) -> int:
    """The estimated tokens of the prompts, and the most tokens of the answers."""
    usual = USUAL_ANSWER if sum(request.n for request in requests) == 1 else n_ctx
    return sum(
        rough_tokens(request.prompt) + request.n * (usual if request.max_tokens is None else request.max_tokens)
        for request in requests
    )


def rough_tokens(prompt: Prompt | PairPrompt) -> int:
    """An estimate without a tokenizer: four bytes per token."""
    match prompt:
        case TokenPrompt(tokens):
            return len(tokens)
        case MixedPrompt(parts):
            return sum(1 if isinstance(part, int) else _tokens_of(part) for part in parts)
        case _:
            return _tokens_of(prompt)


def _tokens_of(content: object) -> int:
    return -(-len(msgspec.json.encode(content)) // _BYTES_PER_TOKEN)
