"""What the requests of a run show."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from paddock_lab.bench.drawing import pictures
from paddock_lab.bench.experiment import Row, Seen, Span
from paddock_lab.bench.loads import Figure
from paddock_lab.bench.samples import KINDS, MEASURES, Measure, Samples, in_milliseconds
from paddock_lab.bench.window import Heard
from paddock_lab.clock import doubts
from paddock_lab.report import Cell, Findings, Table
from paddock_lab.statistics import Estimate, in_words, median, number, quantile, ratio_of_medians

_TAILS: Mapping[int, int] = {95: 20, 99: 100}
"""Of fewer values than these the percentile would be their maximum, and is left out."""
_WHOLES: Sequence[Figure] = ("requests/s", "tokens/s", "all done")


def findings(requests: Sequence[Seen], spans: Sequence[Span], rows: Sequence[Row], servers: Sequence[str]) -> Findings:
    """The first of the servers is the one that the others are compared with."""
    samples = Samples(requests, spans)
    labels = [row.label for row in rows]
    found = Findings(summary=[*_summary(samples, rows, servers), *_left_of_others(samples, rows, servers)])
    wanted, others = _ratios(samples, rows, servers)
    found.tables = [_loads(samples, labels, servers), *wanted, _first_tokens(samples, labels, servers), *others]
    found.tables += _errors(samples, labels, servers)
    found.notes = _notes(samples, labels, servers)
    found.pictures = pictures(samples, rows, servers)
    return found


def _summary(samples: Samples, rows: Sequence[Row], servers: Sequence[str]) -> list[str]:
    """A line for each figure that a load is for."""
    first, *others = servers
    summary = []
    for row in rows:
        for figure in row.point.figures:
            measure = MEASURES[figure]
            values = {server: found for server in servers if (found := samples.values(row.label, server, figure))}
            medians = ", ".join(f"{server} {number(median(found).value)}" for server, found in values.items())
            compared = [
                _compared(first, other, _better(values[first], values[other], measure), measure)
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
        for kind, title in KINDS.items():
            for server in servers:
                heard = samples.requests(label, server, kind)
                values = in_milliseconds(heard, lambda one: one.first_token)
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
        for figure, measure in MEASURES.items():
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


def _compared(first: str, other: str, ratio: Estimate, measure: Measure) -> str:
    """The ratio of the table, in words: above 1 the first server is better."""
    more, less = (first, other) if measure.better == "higher" else (other, first)
    return f"{more} {in_words(ratio, f'{measure.words} as {less}')}"


def _better(first: Sequence[float], other: Sequence[float], measure: Measure) -> Estimate:
    return ratio_of_medians(first, other) if measure.better == "higher" else ratio_of_medians(other, first)


def _median(values: Sequence[float]) -> Estimate | None:
    return median(values) if values else None


def _tails(values: Sequence[float]) -> tuple[Cell, Cell, Cell]:
    p95, p99 = (quantile(values, percent) if len(values) >= fewest else None for percent, fewest in _TAILS.items())
    return _median(values), p95, p99


def _tokens(heard: Sequence[Heard]) -> tuple[float | None, float | None]:
    prompts = [one.prompt_tokens for one in heard if one.prompt_tokens is not None]
    cached = [one.cached_tokens for one in heard if one.cached_tokens is not None]
    return statistics.median(prompts) if prompts else None, statistics.median(cached) if cached else None
