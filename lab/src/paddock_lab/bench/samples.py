"""The measurements of a run, by load and server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from paddock_lab.bench.experiment import Sample, Span
from paddock_lab.bench.loads import Figure
from paddock_lab.bench.window import Kind, RequestResult

KINDS: Mapping[Kind, str] = {"first": "first turn", "later": "later turns", "long": "long prompts"}
_MILLISECONDS = 1000


@dataclass(frozen=True)
class Measure:
    title: str
    better: Literal["higher", "lower"]
    words: str
    """Stands between `1.2 times …` and `… as NAME`, for the server with the larger value."""


MEASURES: Mapping[Figure, Measure] = {
    "requests/s": Measure("requests/s", "higher", "as many requests per second"),
    "tokens/s": Measure("tokens/s", "higher", "as many tokens per second"),
    "all done": Measure("all done (s)", "lower", "as long until all requests are done"),
    "first token": Measure("first token (ms)", "lower", "as long to the first token"),
    "later turns": Measure("first token, later turns (ms)", "lower", "as long to the first token of a later turn"),
    "long prompts": Measure("first token, long prompts (ms)", "lower", "as long to the first token of a long prompt"),
    "between tokens": Measure("between tokens (ms)", "lower", "as long between tokens"),
    "longest stall": Measure("longest stall (ms)", "lower", "as long a stall of a running stream"),
}


class Samples:
    """The requests and spans of a run, by load and server."""

    def __init__(self, requests: Sequence[Sample], spans: Sequence[Span]) -> None:
        self._requests, self._spans = requests, spans

    def requests(self, load: str, server: str, *kinds: Kind) -> list[RequestResult]:
        """The answered requests of these kinds."""
        return [one for one in self.all(load, server) if one.kind in kinds and not one.error]

    def all(self, load: str, server: str) -> list[RequestResult]:
        return [
            sample.result for sample in self._requests if (sample.place.load, sample.place.server) == (load, server)
        ]

    def spans(self, load: str, server: str) -> list[Span]:
        return [span for span in self._spans if (span.place.load, span.place.server) == (load, server)]

    def values(self, load: str, server: str, figure: Figure) -> list[float]:
        """One value per round for figures of the whole load, else one value per request."""
        match figure:
            case "requests/s":
                return [span.requests / span.seconds for span in self.spans(load, server) if span.seconds > 0]
            case "tokens/s":
                return [span.tokens / span.seconds for span in self.spans(load, server) if span.seconds > 0]
            case "all done":
                return [span.seconds for span in self.spans(load, server) if span.seconds > 0]
            case "first token":
                return in_milliseconds(self.requests(load, server, "first", "later"), lambda one: one.first_token)
            case "later turns":
                return in_milliseconds(self.requests(load, server, "later"), lambda one: one.first_token)
            case "long prompts":
                return in_milliseconds(self.requests(load, server, "long"), lambda one: one.first_token)
            case "between tokens":
                return in_milliseconds(self.requests(load, server, "first", "later"), lambda one: one.between_tokens)
            case "longest stall":
                return self._longest_stalls(load, server)

    def _longest_stalls(self, load: str, server: str) -> list[float]:
        by_round: dict[int, float] = {}
        for sample in self._requests:
            if (sample.place.load, sample.place.server) == (load, server) and sample.result.kind in ("first", "later"):
                stall = _MILLISECONDS * (sample.result.longest_stall or 0.0)
                by_round[sample.place.round] = max(stall, by_round.get(sample.place.round, 0.0))
        return [stall for stall in by_round.values() if stall > 0]


def in_milliseconds(result: Sequence[RequestResult], value: Callable[[RequestResult], float | None]) -> list[float]:
    """In milliseconds, without missing values."""
    return [_MILLISECONDS * found for one in result if (found := value(one))]
