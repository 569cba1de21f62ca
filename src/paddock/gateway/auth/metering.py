"""The meter of one request to a model: it reserves what the request may use, and charges its key for what it used."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from fastapi import Request

from paddock.errors import InvalidRequest, RateLimitExceeded
from paddock.fleet import Generation
from paddock.gateway.auth.limits import Limits
from paddock.gateway.auth.usage import KeyUsage
from paddock.gateway.http.scope import METER
from paddock.gateway.http.sizes import MOST_ANSWERS_IN_ALL
from paddock.types import ChatPrompt, GenerateRequest, MediaPrompt, MixedPrompt, PairPrompt, Prompt, TokenPrompt, Usage

USUAL_ANSWER: Final = 1024
"""Tokens that are reserved for a single answer without `max_tokens`. A longer answer puts its key into debt. Each of
several such answers reserves the model's whole context.
"""
_TOKENS_PER_FILE = 512
"""Of an image or audio, roughly. Its bytes say nothing about its tokens."""
_BYTES_PER_TOKEN = 4


class Meter:
    """Created when the request arrives and closed by the outermost layer."""

    def __init__(self, limits: Limits, usage: KeyUsage) -> None:
        self._limits = limits
        self._usage = usage
        self._failed = False
        self._holders = 1
        self._generations: Sequence[Generation] = ()
        self._unfinished = 0
        self._pooled: int | None = None
        self._answers = 0
        """The number of answers that count as running."""
        self._reserved: int | None = None
        """Tokens that are reserved and not settled yet."""

    def admit(self) -> None:
        """Count the request. Raises `RateLimitExceeded` if the key has reached a limit."""
        self._usage.requests += 1
        try:
            self._limits.admit(time.monotonic())
        except RateLimitExceeded:
            self._usage.rate_limited += 1
            raise
        self._answers = 1

    @property
    def counts_tokens(self) -> bool:
        return self._limits.counts_tokens

    def reserve(self, answers: int, tokens: int) -> None:
        """Reserve what the request may use. Raises `RateLimitExceeded` or `InvalidRequest` if that is too much."""
        try:
            self._reserved = self._limits.reserve(answers, tokens, time.monotonic())
        except RateLimitExceeded:
            self._usage.rate_limited += 1
            raise
        self._answers = answers

    def generating(self, generations: Sequence[Generation]) -> None:
        """Charge the key for each generation when it ends, before the client receives its end."""
        self._generations = generations
        self._unfinished = len(generations)
        for generation in generations:
            generation.when_ended(self._account)

    def pooling(self, tokens: int) -> None:
        """Set the number of input tokens that have been computed so far."""
        self._pooled = tokens

    def pooled(self, tokens: int) -> None:
        """Set the number of input tokens when all have been computed."""
        self._pooled = tokens
        self._settle()

    def failed(self) -> None:
        """Count the request as failed, once."""
        self._usage.errors += not self._failed
        self._failed = True

    def headers(self) -> dict[str, str]:
        return self._limits.headers(time.monotonic())

    def log_fields(self) -> dict[str, Any]:
        if self._pooled is not None:
            return {"prompt_tokens": self._pooled}
        if not self._generations:
            return {}
        used = [generation.used for generation in self._generations]
        reasons = {reason for generation in self._generations for reason in generation.finish_reasons}
        replicas = {generation.replica for generation in self._generations} - {""}
        return {
            **({"replica": ",".join(sorted(replicas))} if replicas else {}),
            "prompt_tokens": sum(usage.prompt_tokens for usage in used),
            "cached_tokens": sum(usage.cached_tokens for usage in used),
            "completion_tokens": sum(usage.completion_tokens for usage in used),
            "finish_reason": ",".join(sorted(reasons)) or None,
        }

    def hold(self) -> None:
        """Keep it open when the request ends: it takes one more `close`."""
        self._holders += 1

    def close(self) -> None:
        """Settle and release everything, unless something still holds it."""
        self._holders -= 1
        if self._holders:
            return
        if any(generation.failed for generation in self._generations):
            self.failed()
        self._settle()
        self._limits.release(self._answers)

    def _settle(self) -> None:
        """Replace the reservation by what was used."""
        if self._reserved is None:
            return
        reserved, self._reserved = self._reserved, None
        used = [generation.used for generation in self._generations]
        tokens = sum(usage.prompt_tokens + usage.completion_tokens for usage in used)
        if self._pooled is not None:
            self._usage.prompt_tokens += self._pooled
            tokens += self._pooled
        self._limits.settle(reserved, tokens, time.monotonic())

    def _account(self, used: Usage) -> None:
        self._usage.prompt_tokens += used.prompt_tokens
        self._usage.cached_tokens += used.cached_tokens
        self._usage.completion_tokens += used.completion_tokens
        self._unfinished -= 1
        if not self._unfinished:
            self._settle()


def meter_of(request: Request) -> Meter:
    meter: Meter = request.scope[METER]
    return meter


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
        case MediaPrompt(texts, media):
            return _tokens_of(texts) + _TOKENS_PER_FILE * len(media)
        case ChatPrompt(media=media) if media:
            return _tokens_of(msgspec.structs.replace(prompt, media=())) + _TOKENS_PER_FILE * len(media)
        case _:
            return _tokens_of(prompt)


def _tokens_of(content: object) -> int:
    return -(-len(msgspec.json.encode(content)) // _BYTES_PER_TOKEN)
