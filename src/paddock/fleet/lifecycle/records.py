"""What has happened to each model since the server began, whichever workers it had. Nothing in it ever shrinks."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from paddock.fleet.journey import Journey
from paddock.tally import WAITS, Histogram, Tally
from paddock.types import ModelInfo

_RECENT = 60.0
"""Seconds over which speeds are averaged."""

_waits = partial(Histogram.of, WAITS)


@dataclass(slots=True)
class KeyUsage:
    """By one key, of one model."""

    outcomes: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0


@dataclass(slots=True)
class ModelRecord:
    tally: Tally = field(default_factory=Tally)
    """Of all its workers."""
    longest: int = 0
    """The most tokens that a sequence has had."""
    info: ModelInfo | None = None
    """What the worker said that was loaded last."""
    loads: int = 0
    load_seconds: Histogram = field(default_factory=_waits)
    load_failures: Counter[str] = field(default_factory=Counter)
    """By the error's code."""
    unloads: int = 0
    crashes: Counter[str] = field(default_factory=Counter)
    """By what ended the worker."""
    keys: dict[str, KeyUsage] = field(default_factory=dict)
    wait_seconds: Histogram = field(default_factory=_waits)
    """Until the model was there."""
    first_token_seconds: Histogram = field(default_factory=_waits)
    request_seconds: Histogram = field(default_factory=_waits)
    _recent: deque[tuple[float, Tally]] = field(default_factory=deque)

    def counted(self, tally: Tally, now: float) -> None:
        """A worker has done this."""
        self.tally.add(tally)
        self._recent.append((now, tally))
        self._forget(now)

    def loaded(self, seconds: float, info: ModelInfo | None = None) -> None:
        self.loads += 1
        self.info = info
        self.load_seconds.observe(seconds)

    def ended(self, journey: Journey) -> None:
        """A request has."""
        usage = self.keys.setdefault(journey.origin.key, KeyUsage())
        usage.outcomes[journey.outcome] += 1
        usage.prompt_tokens += journey.prompt_tokens
        usage.cached_tokens += journey.used.cached_tokens
        usage.generated_tokens += journey.used.completion_tokens
        if journey.ready is not None:
            self.wait_seconds.observe(journey.ready - journey.began)
        if journey.first is not None:
            self.first_token_seconds.observe(journey.first - journey.began)
        if journey.ended is not None:
            self.request_seconds.observe(journey.ended - journey.began)

    def speeds(self, now: float) -> tuple[float, float]:
        """Tokens that a request's prompt, and then its answer, came to in a second, of late; 0 where none did."""
        self._forget(now)
        recent = [tally for _, tally in self._recent]
        return (
            _ratio(sum(tally.prompt_tokens for tally in recent), sum(tally.prompt_seconds for tally in recent)),
            _ratio(
                sum(tally.inter_token_seconds.count for tally in recent),
                sum(tally.inter_token_seconds.sum for tally in recent),
            ),
        )

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0][0] < now - _RECENT:
            self._recent.popleft()


class Records:
    """One for every model that anything has happened to."""

    def __init__(self) -> None:
        self._models: dict[str, ModelRecord] = {}

    def of(self, name: str) -> ModelRecord:
        return self._models.setdefault(name, ModelRecord())

    def find(self, name: str) -> ModelRecord | None:
        return self._models.get(name)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._models))


def _ratio(amount: float, by: float) -> float:
    return amount / by if by else 0.0
