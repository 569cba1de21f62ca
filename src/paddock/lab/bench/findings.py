"""What the requests of a run show."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from paddock.lab.bench.experiment import Row, Seen, Span
from paddock.lab.bench.loads import Figure
from paddock.lab.bench.window import Heard, Kind
from paddock.lab.clock import doubts
from paddock.lab.report import Cell, Findings, Picture, Table
from paddock.lab.report.pictures import distributions, lines, timelines
from paddock.lab.statistics import Estimate, in_words, median, number, quantile, ratio_of_medians

_TAILS: Mapping[int, int] = {95: 20, 99: 100}
"""Of fewer values than these the percentile would be their maximum, and is left out."""
_KINDS: Mapping[Kind, str] = {"first": "first turn", "later": "later turns", "long": "long prompts"}
_WHOLES: Sequence[Figure] = ("requests/s", "tokens/s", "all done")
_OVER_LOAD: Mapping[Figure, str] = {"first token": "ttft", "tokens/s": "tokens"}
"""What curves show, and what their files are called."""
_MILLISECONDS = 1000


@dataclass(frozen=True)
class _Measure:
    title: str
    better: Literal["higher", "lower"]
    words: str
    """After `1.2 times …`, of the other server, as seen from the first one."""


_MEASURES: Mapping[Figure, _Measure] = {
    "requests/s": _Measure("requests/s", "higher", "as many requests a second"),
    "tokens/s": _Measure("tokens/s", "higher", "as many tokens a second"),
    "all done": _Measure("all done (s)", "lower", "as long until all is done"),
    "first token": _Measure("first token (ms)", "lower", "as long to the first token"),
    "later turns": _Measure("first token, later turns (ms)", "lower", "as long to the first token of a later turn"),
    "long prompts": _Measure("first token, long prompts (ms)", "lower", "as long to the first token of a long prompt"),
    "between tokens": _Measure("between tokens (ms)", "lower", "as long from token to token"),
    "longest stall": _Measure("longest stall (ms)", "lower", "as long a stall of a running stream"),
}


class Samples:
    """The requests and spans of a run, by load and server."""

    def __init__(self, requests: Sequence[Seen], spans: Sequence[Span]) -> None:
        self._requests, self._spans = requests, spans

    def requests(self, load: str, server: str, *kinds: Kind) -> list[Heard]:
        """Those that count and were answered."""
        return [one for one in self.all(load, server) if one.kind in (kinds or _KINDS) and not one.error]

    def all(self, load: str, server: str) -> list[Heard]:
        return [seen.heard for seen in self._requests if (seen.place.load, seen.place.server) == (load, server)]

    def spans(self, load: str, server: str) -> list[Span]:
        return [span for span in self._spans if (span.place.load, span.place.server) == (load, server)]

    def values(self, load: str, server: str, figure: Figure) -> list[float]:
        """One for each round of what a load as a whole gives; one for each request of what a request gives."""
        match figure:
            case "requests/s":
                return [span.requests / span.seconds for span in self.spans(load, server) if span.seconds > 0]
            case "tokens/s":
                return [span.tokens / span.seconds for span in self.spans(load, server) if span.seconds > 0]
            case "all done":
                return [span.seconds for span in self.spans(load, server) if span.seconds > 0]
            case "first token":
                return _each(self.requests(load, server, "first", "later"), lambda one: one.first_token)
            case "later turns":
                return _each(self.requests(load, server, "later"), lambda one: one.first_token)
            case "long prompts":
                return _each(self.requests(load, server, "long"), lambda one: one.first_token)
            case "between tokens":
                return _each(self.requests(load, server, "first", "later"), lambda one: one.between_tokens)
            case "longest stall":
                return self._longest_stalls(load, server)

    def _longest_stalls(self, load: str, server: str) -> list[float]:
        by_round: dict[int, float] = {}
        for seen in self._requests:
            if (seen.place.load, seen.place.server) == (load, server) and seen.heard.kind in ("first", "later"):
                stall = _MILLISECONDS * (seen.heard.longest_stall or 0.0)
                by_round[seen.place.round] = max(stall, by_round.get(seen.place.round, 0.0))
        return [stall for stall in by_round.values() if stall > 0]


def findings(requests: Sequence[Seen], spans: Sequence[Span], rows: Sequence[Row], servers: Sequence[str]) -> Findings:
    """The first of the servers is the one that the others are compared with."""
    samples = Samples(requests, spans)
    labels = [row.label for row in rows]
    found = Findings(summary=[*_summary(samples, rows, servers), *_left_of_others(samples, rows, servers)])
    wanted, others = _ratios(samples, rows, servers)
    found.tables = [_loads(samples, labels, servers), *wanted, _first_tokens(samples, labels, servers), *others]
    found.tables += _errors(samples, labels, servers)
    found.notes = _notes(samples, labels, servers)
    found.pictures = _pictures(samples, rows, servers)
    return found


def _summary(samples: Samples, rows: Sequence[Row], servers: Sequence[str]) -> list[str]:
    """A line for each figure that a load is for."""
    first, *others = servers
    summary = []
    for row in rows:
        for figure in row.point.figures:
            measure = _MEASURES[figure]
            values = {server: found for server in servers if (found := samples.values(row.label, server, figure))}
            medians = ", ".join(f"{server} {number(median(found).value)}" for server, found in values.items())
            compared = [
                f"{other} against {first}: {in_words(ratio_of_medians(values[other], values[first]), measure.words)}"
                for other in others
                if values.keys() >= {first, other}
            ]
            if values:
                summary.append("; ".join([f"{row.label}: {measure.title}: {medians}", *compared]) + ".")
    return summary


def _left_of_others(samples: Samples, rows: Sequence[Row], servers: Sequence[str]) -> list[str]:
    """How many of another load's tokens per second each server has in a load that is to be compared with it."""
    said = []
    for row in rows:
        other = row.point.load.against
        for server in servers if other else ():
            values, base = (samples.values(label, server, "tokens/s") for label in (row.label, other or ""))
            if values and base:
                share = in_words(ratio_of_medians(values, base), f"the tokens/s of {other}")
                said.append(f"{row.label}: {server} has {share}.")
    return said


def _loads(samples: Samples, labels: Sequence[str], servers: Sequence[str]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for label in labels:
        for server in servers:
            if not (asked := [one for one in samples.all(label, server) if one.kind != "warm-up"]):
                continue
            between = samples.values(label, server, "between tokens")
            wholes = (_median(samples.values(label, server, figure)) for figure in _WHOLES)
            stall = _median(samples.values(label, server, "longest stall"))
            failed = sum(bool(one.error) for one in asked)
            left = sum(one.left for one in asked)
            rows.append((label, server, len(asked), failed, left, *wholes, *_tails(between), stall))
    columns = (
        *("load", "server", "requests", "failed", "left early", "requests/s", "tokens/s", "all done (s)"),
        *("between tokens p50 (ms)", "p95", "p99", "longest stall (ms)"),
    )
    note = (
        "Requests/s, tokens/s, all done and the longest stall are medians over the rounds; between tokens is "
        "the mean of each answer. Intervals are of 95 %."
    )
    return Table("Loads", columns, rows, note)


def _first_tokens(samples: Samples, labels: Sequence[str], servers: Sequence[str]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for label in labels:
        for kind, title in _KINDS.items():
            for server in servers:
                heard = samples.requests(label, server, kind)
                values = _each(heard, lambda one: one.first_token)
                if values:
                    prompt, cached = _tokens(heard)
                    rows.append((label, title, server, len(values), *_tails(values), prompt, cached))
    columns = ("load", "requests", "server", "number", "first token p50 (ms)", "p95", "p99", "prompt tokens", "cached")
    return Table(
        "Time to the first token", columns, rows, "Prompt and cached tokens are medians of what a server tells."
    )


def _ratios(samples: Samples, rows: Sequence[Row], servers: Sequence[str]) -> tuple[list[Table], list[Table]]:
    """In what the loads are for, and in everything else. Above 1 the first server is better, whatever the measure."""
    first, *others = servers
    wanted: list[tuple[Cell, ...]] = []
    unasked: list[tuple[Cell, ...]] = []
    for row in rows:
        for figure, measure in _MEASURES.items():
            values = {server: samples.values(row.label, server, figure) for server in servers}
            if not values[first] or not any(values[other] for other in others):
                continue
            medians = (median(values[server]).value if values[server] else None for server in servers)
            ratios = (_better(values[first], values[other], measure) if values[other] else None for other in others)
            table = wanted if figure in row.point.figures else unasked
            table.append((row.label, measure.title, *medians, *ratios))
    columns = ("load", "measure", *servers, *(f"times as good as {other}" for other in others))
    note = (
        f"A ratio above 1 means that {first} is better, also where less is better. Where its interval includes 1 no "
        "difference was shown."
    )
    titled = ((f"{first} against the others", wanted), ("... in what these loads are not for", unasked))
    in_this, in_that = ([Table(title, columns, found, note)] if found else [] for title, found in titled)
    return in_this, in_that


def _errors(samples: Samples, labels: Sequence[str], servers: Sequence[str]) -> list[Table]:
    rows: list[tuple[Cell, ...]] = []
    for label in labels:
        for server in servers:
            failed = [one for one in samples.all(label, server) if one.error]
            for kind, count in Counter(one.error for one in failed).most_common():
                first = next(one.message for one in failed if one.error == kind)
                rows.append((label, server, kind, count, first))
    return [Table("Errors", ("load", "server", "kind", "number", "the first of them"), rows)] if rows else []


def _notes(samples: Samples, labels: Sequence[str], servers: Sequence[str]) -> list[str]:
    notes = []
    for server in servers:
        spans = [span for label in labels for span in samples.spans(label, server)]
        if spans:
            busiest = max(spans, key=lambda span: span.client_share)
            disturbed = max(spans, key=lambda span: span.other_share or 0.0)
            notes += [f"{server}: {doubt}, in {busiest.place.load}" for doubt in doubts(busiest.client_share, 0.0)]
            notes += [
                f"{server}: {doubt}, in {disturbed.place.load}" for doubt in doubts(0.0, disturbed.other_share or 0.0)
            ]
        for label in labels:
            heard = samples.all(label, server)
            if failed := sum(bool(one.error) for one in heard):
                notes.append(f"{label} on {server}: {failed} of {len(heard)} requests failed")
            if short := sum(one.tokens < one.asked for one in heard if not (one.error or one.left)):
                notes.append(f"{label} on {server}: {short} answers were shorter than asked for")
    return notes


def _pictures(samples: Samples, rows: Sequence[Row], servers: Sequence[str]) -> list[Picture]:
    by_load = {
        (row.label, server): values
        for row in rows
        for server in servers
        if (values := samples.values(row.label, server, "first token"))
    }
    if not by_load:
        return []
    title = "Time to the first token: every request, its median and the middle half"
    pictures = [Picture("ttft", title, distributions(by_load, "time to the first token (ms)"))]
    return [*pictures, *_curves(samples, rows, servers), *_timelines(samples, rows, servers)]


def _curves(samples: Samples, rows: Sequence[Row], servers: Sequence[str]) -> list[Picture]:
    """Of loads that were tried at several strengths."""
    pictures = []
    for load in dict.fromkeys(row.load for row in rows):
        of_load = [row for row in rows if row.load == load]
        strengths = {row.label: float(row.point.clients or row.point.rate or 0) for row in of_load}
        if len(set(strengths.values())) < 2:
            continue
        x_label = "clients at once" if of_load[0].point.clients else "requests begun in a second"
        for figure, short in _OVER_LOAD.items():
            series = {
                f"{server} {name}".strip(): points
                for server in servers
                for name in dict.fromkeys(row.pass_name for row in of_load)
                if (points := _curve(samples, [row for row in of_load if row.pass_name == name], server, figure))
            }
            if series:
                file_name = f"{_file_name(load)}-{short}-over-load"
                title = f"{load}: {_MEASURES[figure].title}, median, over the load"
                pictures.append(Picture(file_name, title, lines(series, x_label, _MEASURES[figure].title)))
    return pictures


def _curve(samples: Samples, rows: Sequence[Row], server: str, figure: Figure) -> list[tuple[float, float]]:
    found = [(row, samples.values(row.label, server, figure)) for row in rows]
    return [(float(row.point.clients or row.point.rate or 0), median(values).value) for row, values in found if values]


def _timelines(samples: Samples, rows: Sequence[Row], servers: Sequence[str]) -> list[Picture]:
    """Of the loads with long prompts that interfere; of the one with the longest stall, where none has any."""
    worst = {
        row.label: {server: stream for server in servers if (stream := _most_stalled(samples, row.label, server))}
        for row in rows
    }
    disturbed = [row.label for row in rows if row.point.load.interference and worst[row.label]]
    if not disturbed and any(worst.values()):
        disturbed = [max(worst, key=lambda label: max(map(_stall, worst[label].values()), default=0.0))]
    return [
        Picture(
            f"{_file_name(label)}-timeline",
            f"{label}: when the tokens of a stream came; of each server the stream with the longest stall",
            timelines({server: one.times for server, one in worst[label].items()}),
        )
        for label in disturbed
    ]


def _most_stalled(samples: Samples, label: str, server: str) -> Heard | None:
    streams = [one for one in samples.requests(label, server, "first", "later") if len(one.times) > 1]
    return max(streams, key=_stall, default=None)


def _stall(heard: Heard) -> float:
    return heard.longest_stall or 0.0


def _better(first: Sequence[float], other: Sequence[float], measure: _Measure) -> Estimate:
    return ratio_of_medians(first, other) if measure.better == "higher" else ratio_of_medians(other, first)


def _each(heard: Sequence[Heard], value: Callable[[Heard], float | None]) -> list[float]:
    """In milliseconds; only what is above zero, which nothing measured is."""
    return [_MILLISECONDS * found for one in heard if (found := value(one))]


def _median(values: Sequence[float]) -> Estimate | None:
    return median(values) if values else None


def _tails(values: Sequence[float]) -> tuple[Cell, Cell, Cell]:
    p95, p99 = (quantile(values, percent) if len(values) >= fewest else None for percent, fewest in _TAILS.items())
    return _median(values), p95, p99


def _tokens(heard: Sequence[Heard]) -> tuple[float | None, float | None]:
    prompts = [one.prompt_tokens for one in heard if one.prompt_tokens is not None]
    cached = [one.cached_tokens for one in heard if one.cached_tokens is not None]
    return statistics.median(prompts) if prompts else None, statistics.median(cached) if cached else None


def _file_name(label: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in label)
