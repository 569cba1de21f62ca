"""Rate limits of one key: requests and tokens per minute, and concurrent requests. Pure: `now` is passed in."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paddock.config import KeySettings
from paddock.errors import InvalidRequest, RateLimitExceeded

_MINUTE = 60.0
_SOON = 1.0
"""`Retry-After` when too many requests of the key run: when the first of them ends is unknown."""
_GRAIN = 1e-6
"""Tolerance for rounding."""
_HEADER = "x-ratelimit-{}-{}"
HEADERS = tuple(_HEADER.format(what, of) for of in ("requests", "tokens") for what in ("limit", "remaining", "reset"))


@dataclass(frozen=True, slots=True)
class Rates:
    """None: unlimited."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None

    @classmethod
    def of(cls, settings: KeySettings) -> Rates:
        return cls(settings.requests_per_minute, settings.tokens_per_minute, settings.concurrent_requests)

    def divided(self, gateways: int) -> Rates:
        """The share of one of several gateways, each of which enforces its own. At least 1, otherwise rounded down, so
        that all together never allow more.
        """
        return Rates(
            *(
                None if rate is None else max(1, rate // gateways)
                for rate in (self.requests_per_minute, self.tokens_per_minute, self.concurrent_requests)
            )
        )


class Bucket:
    """A token bucket that holds one minute's allowance. Its level may become negative, which is a debt."""

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at = now

    def level(self, now: float) -> float:
        """What is left; negative: the debt."""
        refilled = self._level + max(0.0, now - self._at) * self.per_minute / _MINUTE
        return min(float(self.per_minute), refilled)

    def take(self, amount: int, now: float) -> None:
        """A negative amount is returned to the bucket."""
        self._level, self._at = self.level(now) - amount, max(now, self._at)

    def seconds_until(self, level: float, now: float) -> float:
        missing = level - self.level(now)
        return 0.0 if missing < _GRAIN else missing * _MINUTE / self.per_minute

    def headers(self, of: str, now: float) -> dict[str, str]:
        """OpenAI's headers. `reset` is the time until the bucket is full."""
        return {
            _HEADER.format("limit", of): str(self.per_minute),
            _HEADER.format("remaining", of): str(max(0, math.floor(self.level(now) + _GRAIN))),
            _HEADER.format("reset", of): duration(self.seconds_until(self.per_minute, now)),
        }


class Limits:
    """The limits of one key name. They exist as long as the server runs, also when the rates change."""

    def __init__(self, rates: Rates, now: float) -> None:
        self.running = 0
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self.change(rates, now)

    def change(self, rates: Rates, now: float) -> None:
        """Replace the rates. A bucket whose rate is the same keeps its level."""
        self._requests = _changed(self._requests, rates.requests_per_minute, now)
        self._tokens = _changed(self._tokens, rates.tokens_per_minute, now)
        self._rates = rates

    def admit(self, now: float) -> None:
        """Count one request, until it is released. Raises `RateLimitExceeded`; then nothing has been counted."""
        most = self._rates.concurrent_requests
        if most is not None and self.running >= most:
            raise RateLimitExceeded(
                f"this key has {self.running} requests running; the limit is {most} concurrent requests",
                retry_after=_SOON,
            )
        for bucket, what in ((self._tokens, "tokens"), (self._requests, "requests")):
            if bucket is not None and (wait := bucket.seconds_until(1, now)) > 0:
                reason = f"this key has used its {bucket.per_minute} {what} per minute: try again in {duration(wait)}"
                raise RateLimitExceeded(reason, retry_after=wait)
        if self._requests is not None:
            self._requests.take(1, now)
        self.running += 1

    @property
    def counts_tokens(self) -> bool:
        return self._tokens is not None

    def reserve(self, answers: int, tokens: int, now: float) -> int:
        """Count an admitted request as `answers` concurrent answers, and take the tokens that it may use.

        Returns how many tokens were taken: for a single answer at most a minute's allowance; what it uses beyond is a
        debt. Raises `RateLimitExceeded` if it would fit later, and `InvalidRequest` if it never would; then nothing has
        been counted.
        """
        most = self._rates.concurrent_requests
        if most is not None and answers > most:
            raise InvalidRequest(
                f"the request needs {answers} answers; this key may have {most} concurrent answers", param="n"
            )
        if most is not None and self.running - 1 + answers > most:
            reason = f"the request needs {answers} answers; this key has {self.running - 1} running and may have {most}"
            raise RateLimitExceeded(reason, retry_after=_SOON)
        taken = 0
        if self._tokens is not None:
            allowed = self._tokens.per_minute
            if answers > 1 and tokens > allowed:
                raise InvalidRequest(
                    f"{answers} answers and their prompts may use {tokens} tokens; this key may use {allowed} per "
                    "minute: request fewer or shorter answers (n, max_tokens)",
                    param="n",
                )
            taken = min(tokens, allowed)
            if (wait := self._tokens.seconds_until(taken, now)) > 0:
                reason = (
                    f"the request may use {tokens} tokens; this key may use {allowed} per minute: "
                    f"try again in {duration(wait)}"
                )
                raise RateLimitExceeded(reason, retry_after=wait)
            self._tokens.take(taken, now)
        self.running += answers - 1
        return taken

    def settle(self, taken: int, used: int, now: float) -> None:
        """Replace the tokens that were taken by those that were used."""
        if self._tokens is not None:
            self._tokens.take(used - taken, now)

    def release(self, answers: int = 1) -> None:
        self.running -= answers

    def headers(self, now: float) -> dict[str, str]:
        """The headers that tell a client its limits."""
        requests = self._requests.headers("requests", now) if self._requests is not None else {}
        tokens = self._tokens.headers("tokens", now) if self._tokens is not None else {}
        return requests | tokens


def duration(seconds: float) -> str:
    """In Go's format, as OpenAI writes it: `120ms`, `7.66s`, `2m59.5s`. Rounded up, so that no retry is too early."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return (f"{minutes}m" if minutes else "") + f"{rest / 1000:g}s"


def _changed(bucket: Bucket | None, per_minute: int | None, now: float) -> Bucket | None:
    if bucket is not None and bucket.per_minute == per_minute:
        return bucket
    return None if per_minute is None else Bucket(per_minute, now)
