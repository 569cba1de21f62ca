"""Counters of each model since the server started, across worker restarts. They never decrease."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from paddock.fleet.requests.request_record import RequestRecord
from paddock.tally import WAITS, Histogram, Tally
from paddock.types import ModelInfo

_RECENT = 60.0
"""Seconds over which speeds are averaged."""

_waits = partial(Histogram.of, WAITS)


@dataclass(slots=True)
class KeyUsage:
    """Requests of one API key to one model."""

    outcomes: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0


@dataclass(slots=True)
class ModelRecord:
    tally: Tally = field(default_factory=Tally)
    """Sum over all its workers."""
    longest: int = 0
    """The most tokens of any sequence."""
    info: ModelInfo | None = None
    """From the last loaded worker."""
    loads: int = 0
    load_seconds: Histogram = field(default_factory=_waits)
    load_failures: Counter[str] = field(default_factory=Counter)
    """By error code."""
    unloads: int = 0
    crashes: Counter[str] = field(default_factory=Counter)
    """By cause: a signal, `exit`, `protocol` or `hang`."""
    keys: dict[str, KeyUsage] = field(default_factory=dict)
    wait_seconds: Histogram = field(default_factory=_waits)
    """Until the model was loaded."""
    first_token_seconds: Histogram = field(default_factory=_waits)
    request_seconds: Histogram = field(default_factory=_waits)
    _recent: deque[tuple[float, Tally]] = field(default_factory=deque)

    def counted(self, tally: Tally, now: float) -> None:
        """Add a worker's increment."""
        self.tally.add(tally)
        self._recent.append((now, tally))
        self._drop_old(now)

    def loaded(self, seconds: float, info: ModelInfo | None = None) -> None:
        self.loads += 1
        self.info = info
        self.load_seconds.observe(seconds)

    def add_first_token(self, request: RequestRecord) -> None:
        """A request's first token arrived. Counted at once: at the end of a long answer it would be old."""
        if request.first is not None:
            self.first_token_seconds.observe(request.first - request.began)

    def add_request(self, request: RequestRecord) -> None:
        """Add a finished request."""
        usage = self.keys.setdefault(request.origin.key, KeyUsage())
        usage.outcomes[request.outcome] += 1
        usage.prompt_tokens += request.prompt_tokens
        usage.cached_tokens += request.used.cached_tokens
        usage.generated_tokens += request.used.completion_tokens
        if request.ready is not None:
            self.wait_seconds.observe(request.ready - request.began)
        if request.ended is not None:
            self.request_seconds.observe(request.ended - request.began)

    def speeds(self, now: float) -> tuple[float, float]:
        """Recent prompt and generation speed of a request in tokens per second; 0 without recent tokens."""
        self._drop_old(now)
        recent = [tally for _, tally in self._recent]
        return (
            _ratio(sum(tally.prompt_tokens for tally in recent), sum(tally.prompt_seconds for tally in recent)),
            _ratio(
                sum(tally.inter_token_seconds.count for tally in recent),
                sum(tally.inter_token_seconds.sum for tally in recent),
            ),
        )

    def _drop_old(self, now: float) -> None:
        while self._recent and self._recent[0][0] < now - _RECENT:
            self._recent.popleft()


class Records:
    """One record for every model that was used."""

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
