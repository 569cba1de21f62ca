"""The meter of one request to a model: it charges the API key, however the request ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fastapi import Request

from paddock.errors import RateLimitExceeded
from paddock.fleet import Generation
from paddock.gateway.auth.limits import Limits
from paddock.gateway.auth.usage import KeyUsage
from paddock.gateway.http.scope import METER
from paddock.types import Usage


class Meter:
    """Created when the request arrives and closed by the outermost layer."""

    def __init__(self, limits: Limits, usage: KeyUsage) -> None:
        self._limits = limits
        self._usage = usage
        self._failed = False
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

    def answered(self, status: int) -> None:
        """Called when the status is about to be sent."""
        if status >= 400:
            self.failed()

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

    def close(self) -> None:
        """Settle and release everything."""
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
