"""One request to a model, as its key is charged for it, however it ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from fastapi import Request

from paddock.errors import RateLimitExceeded
from paddock.fleet import Generation
from paddock.gateway.auth.limits import Limits
from paddock.gateway.auth.usage import KeyUsage
from paddock.types import Usage

METER: Final = "paddock.meter"
"""Where the scope of a request to a model has its meter."""


class Meter:
    """Made when the request comes and closed by the outermost layer, whoever ended it."""

    def __init__(self, limits: Limits, usage: KeyUsage) -> None:
        self._limits = limits
        self._usage = usage
        self._failed = False
        self._generations: Sequence[Generation] = ()
        self._unfinished = 0
        self._pooled: int | None = None
        self._answers = 0
        """That are counted as running."""
        self._reserved: int | None = None
        """Tokens that were taken for it and are not settled yet."""

    def admit(self) -> None:
        """Raises `RateLimitExceeded` where the key has had enough for now."""
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
        """It is known now what was asked for. Raises `RateLimitExceeded` or `InvalidRequest` where that is too much."""
        try:
            self._reserved = self._limits.reserve(answers, tokens, time.monotonic())
        except RateLimitExceeded:
            self._usage.rate_limited += 1
            raise
        self._answers = answers

    def generating(self, generations: Sequence[Generation]) -> None:
        """They are in the key's account as soon as they have ended: before anybody hears the last of them."""
        self._generations = generations
        self._unfinished = len(generations)
        for generation in generations:
            generation.when_ended(self._account)

    def pooling(self, tokens: int) -> None:
        """So many tokens of its inputs have been computed, or are about to be."""
        self._pooled = tokens

    def pooled(self, tokens: int) -> None:
        """All of them have."""
        self._pooled = tokens
        self._settle()

    def failed(self) -> None:
        """It has, whatever status the client was told."""
        self._usage.errors += not self._failed
        self._failed = True

    def answered(self, status: int) -> None:
        """The client is about to be told this status."""
        if status >= 400:
            self.failed()

    def headers(self) -> dict[str, str]:
        return self._limits.headers(time.monotonic())

    def told(self) -> dict[str, Any]:
        """What the log says of it."""
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

    def close(self) -> None:
        """The answer has ended."""
        if any(generation.failed for generation in self._generations):
            self.failed()
        self._settle()
        self._limits.release(self._answers)

    def _settle(self) -> None:
        """What was reserved becomes what was used; once."""
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
