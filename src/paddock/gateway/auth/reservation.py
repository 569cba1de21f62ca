"""What a request may use at most, as far as that can be said before it runs: answers at once, and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from paddock.errors import InvalidRequest
from paddock.gateway.http.sizes import MOST_ANSWERS_IN_ALL
from paddock.types import GenerateRequest, MixedPrompt, PairPrompt, Prompt, TokenPrompt

USUAL_ANSWER: Final = 1024
"""Tokens that are reserved for a single answer whose length the request does not limit. It may become longer: what it
then uses is a debt of its key. Each of several such answers reserves the model's whole context.
"""
_BYTES_PER_TOKEN = 4


def answers_of(request: GenerateRequest, prompts: int) -> int:
    """To all prompts of one HTTP request, each of which asks for as many as the others. Raises `InvalidRequest` where
    there are too many.
    """
    answers = request.n * prompts
    if answers > MOST_ANSWERS_IN_ALL:
        reason = f"{prompts} prompts with {answers} answers in all; {MOST_ANSWERS_IN_ALL} answers at most"
        raise InvalidRequest(reason, param="n")
    return answers


def tokens_of(requests: Sequence[GenerateRequest], n_ctx: int) -> int:
    """That they may take: prompts as estimated, answers as long as they may become."""
    usual = USUAL_ANSWER if sum(request.n for request in requests) == 1 else n_ctx
    return sum(
        rough_tokens(request.prompt) + request.n * (usual if request.max_tokens is None else request.max_tokens)
        for request in requests
    )


def rough_tokens(prompt: Prompt | PairPrompt) -> int:
    """Before anybody has tokenised it: four bytes to a token."""
    match prompt:
        case TokenPrompt(tokens):
            return len(tokens)
        case MixedPrompt(parts):
            return sum(1 if isinstance(part, int) else _tokens_of(part) for part in parts)
        case _:
            return _tokens_of(prompt)


def _tokens_of(content: object) -> int:
    return -(-len(msgspec.json.encode(content)) // _BYTES_PER_TOKEN)
