"""How much one key may ask for: requests and tokens by the minute, and requests at once. Pure: `now` is passed in."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paddock.config import KeySettings
from paddock.errors import InvalidRequest, RateLimitExceeded

_MINUTE = 60.0
_SOON = 1.0
"""When to try again while others of the same key run: nobody knows when the first of them is done."""
_GRAIN = 1e-6
"""So much may be missing by rounding."""
_HEADER = "x-ratelimit-{}-{}"
HEADERS = tuple(_HEADER.format(what, of) for of in ("requests", "tokens") for what in ("limit", "remaining", "reset"))


@dataclass(frozen=True, slots=True)
class Rates:
    """None: as many as they like."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None

    @classmethod
    def of(cls, settings: KeySettings) -> Rates:
        return cls(settings.requests_per_minute, settings.tokens_per_minute, settings.concurrent_requests)

    def divided(self, gateways: int) -> Rates:
        """One gateway's share where several enforce them, each for itself. At least 1 each, or a key could do nothing;
        rounded down otherwise, so that all together never allow more.
        """
        return Rates(
            *(
                None if rate is None else max(1, rate // gateways)
                for rate in (self.requests_per_minute, self.tokens_per_minute, self.concurrent_requests)
            )
        )


class Bucket:
    """Holds what a minute allows and is refilled evenly. What is used beyond that is a debt, to be waited for."""

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at = now

    def level(self, now: float) -> float:
        """What is left; below zero: what is owed."""
        refilled = self._level + max(0.0, now - self._at) * self.per_minute / _MINUTE
        return min(float(self.per_minute), refilled)

    def take(self, amount: int, now: float) -> None:
        """A negative amount is given back."""
        self._level, self._at = self.level(now) - amount, max(now, self._at)

    def seconds_until(self, level: float, now: float) -> float:
        missing = level - self.level(now)
        return 0.0 if missing < _GRAIN else missing * _MINUTE / self.per_minute

    def headers(self, of: str, now: float) -> dict[str, str]:
        """As OpenAI sends them; the reset is when it will be full again."""
        return {
            _HEADER.format("limit", of): str(self.per_minute),
            _HEADER.format("remaining", of): str(max(0, math.floor(self.level(now) + _GRAIN))),
            _HEADER.format("reset", of): duration(self.seconds_until(self.per_minute, now)),
        }


class Limits:
    """What one key may still do. It lasts for as long as the server does, whatever becomes of the key's rates."""

    def __init__(self, rates: Rates, now: float) -> None:
        self.running = 0
        self._rates = Rates()
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self.change(rates, now)

    def change(self, rates: Rates, now: float) -> None:
        """From now on these hold. A bucket whose rate stays is as full as it was."""
        if rates.requests_per_minute != self._rates.requests_per_minute:
            self._requests = _bucket(rates.requests_per_minute, now)
        if rates.tokens_per_minute != self._rates.tokens_per_minute:
            self._tokens = _bucket(rates.tokens_per_minute, now)
        self._rates = rates

    def admit(self, now: float) -> None:
        """Count one request in, until it is released. Raises `RateLimitExceeded`, and then nothing has been counted."""
        most = self._rates.concurrent_requests
        if most is not None and self.running >= most:
            raise RateLimitExceeded(f"{most} requests at once are allowed with this key", retry_after=_SOON)
        for bucket, what in ((self._tokens, "tokens"), (self._requests, "requests")):
            if bucket is not None and (wait := bucket.seconds_until(1, now)) > 0:
                reason = f"{bucket.per_minute} {what} a minute are allowed with this key: try again in {duration(wait)}"
                raise RateLimitExceeded(reason, retry_after=wait)
        if self._requests is not None:
            self._requests.take(1, now)
        self.running += 1

    @property
    def counts_tokens(self) -> bool:
        return self._tokens is not None

    def reserve(self, answers: int, tokens: int, now: float) -> int:
        """Count a request that was admitted as so many answers at once, and take the tokens that it may use.

        Returns how many were taken: for a single answer no more than a minute allows; what it uses beyond is a debt.
        Raises `RateLimitExceeded` where it would fit later, and `InvalidRequest` where it never would; then nothing has
        been counted.
        """
        most = self._rates.concurrent_requests
        if most is not None and answers > most:
            raise InvalidRequest(f"{answers} answers at once were asked for; this key may have {most}", param="n")
        if most is not None and self.running - 1 + answers > most:
            reason = f"{most} answers at once are allowed with this key, and {self.running - 1} are under way"
            raise RateLimitExceeded(reason, retry_after=_SOON)
        taken = 0
        if self._tokens is not None:
            allowed = self._tokens.per_minute
            if answers > 1 and tokens > allowed:
                raise InvalidRequest(
                    f"{answers} answers and their prompts may take {tokens} tokens; {allowed} a minute are allowed "
                    "with this key: ask for fewer or shorter answers (max_tokens)",
                    param="n",
                )
            taken = min(tokens, allowed)
            if (wait := self._tokens.seconds_until(taken, now)) > 0:
                reason = (
                    f"{allowed} tokens a minute are allowed with this key, and this may take {tokens}: "
                    f"try again in {duration(wait)}"
                )
                raise RateLimitExceeded(reason, retry_after=wait)
            self._tokens.take(taken, now)
        self.running += answers - 1
        return taken

    def settle(self, taken: int, used: int, now: float) -> None:
        """So many tokens were used in the end, of those that were taken for it."""
        if self._tokens is not None:
            self._tokens.take(used - taken, now)

    def release(self, answers: int = 1) -> None:
        self.running -= answers

    def headers(self, now: float) -> dict[str, str]:
        """What a client is told of the limits it has."""
        requests = self._requests.headers("requests", now) if self._requests is not None else {}
        tokens = self._tokens.headers("tokens", now) if self._tokens is not None else {}
        return requests | tokens


def duration(seconds: float) -> str:
    """As Go writes it, and OpenAI with it: `120ms`, `7.66s`, `2m59.5s`. Rounded up, so that nobody comes too early."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return (f"{minutes}m" if minutes else "") + f"{rest / 1000:g}s"


def _bucket(per_minute: int | None, now: float) -> Bucket | None:
    return None if per_minute is None else Bucket(per_minute, now)
