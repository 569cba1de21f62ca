"""The results of a run: summary, tables, charts and notes."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from paddock_lab.bench.drawing import pictures
from paddock_lab.bench.experiment import Row, Sample, Span
from paddock_lab.bench.loads import Figure
from paddock_lab.bench.samples import KINDS, MEASURES, Measure, Samples, in_milliseconds
from paddock_lab.bench.window import RequestResult
from paddock_lab.clock import doubts
from paddock_lab.report import Cell, Findings, Table
from paddock_lab.statistics import Estimate, in_words, median, number, quantile, ratio_of_medians

_TAILS: Mapping[int, int] = {95: 20, 99: 100}
"""Percentile → the fewest values for it. With fewer, the percentile would be the maximum."""
_WHOLES: Sequence[Figure] = ("requests/s", "tokens/s", "all done")


def findings(
    requests: Sequence[Sample], spans: Sequence[Span], rows: Sequence[Row], servers: Sequence[str]
) -> Findings:
    """The other servers are compared with the first one."""
    samples = Samples(requests, spans)
    labels = [row.label for row in rows]
    found = Findings(summary=[*_summary(samples, rows, servers), *_throughput_left(samples, rows, servers)])
    wanted, others = _ratios(samples, rows, servers)
    found.tables = [_loads(samples, labels, servers), *wanted, _first_tokens(samples, labels, servers), *others]
    found.tables += [*_guesses(samples, labels, servers), *_errors(samples, labels, servers)]
    found.notes = _notes(samples, labels, servers)
    found.pictures = pictures(samples, rows, servers)
    return found


def _summary(samples: Samples, rows: Sequence[Row], servers: Sequence[str]) -> list[str]:
    """One line for each figure that a load is made for."""
    first, *others = servers
    summary = []
    for row in rows:
        for figure in row.point.figures:
            measure = MEASURES[figure]
            values = {server: found for server in servers if (found := samples.values(row.label, server, figure))}
            medians = ", ".join(f"{server} {number(median(found).value)}" for server, found in values.items())
            compared = [
                _compared(first, other, _advantage(values[first], values[other], measure), measure)
                for other in others
                if values.keys() >= {first, other}
            ]
            if values:
                summary.append("; ".join([f"{row.label}: {measure.title}: {medians}", *compared]) + ".")
    return summary


def _throughput_left(samples: Samples, rows: Sequence[Row], servers: Sequence[str]) -> list[str]:
    """Tokens per second relative to the load in `against`, for each server."""
    lines = []
    for row in rows:
        other = row.point.load.against
        for server in servers if other else ():
            values, base = (samples.values(label, server, "tokens/s") for label in (row.label, other or ""))
            if values and base:
                share = in_words(ratio_of_medians(values, base), f"the tokens/s of {other}")
                lines.append(f"{row.label}: {server} has {share}.")
    return lines


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
        "the mean of each answer. Intervals are 95 % intervals."
    )
    return Table("Loads", columns, rows, note)


def _first_tokens(samples: Samples, labels: Sequence[str], servers: Sequence[str]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for label in labels:
        for kind, title in KINDS.items():
            for server in servers:
                result = samples.requests(label, server, kind)
                values = in_milliseconds(result, lambda one: one.first_token)
                if values:
                    prompt, cached = _tokens(result)
                    rows.append((label, title, server, len(values), *_tails(values), prompt, cached))
    columns = ("load", "requests", "server", "number", "first token p50 (ms)", "p95", "p99", "prompt tokens", "cached")
    return Table(
        "Time to the first token",
        columns,
        rows,
        "Prompt and cached tokens are medians of the numbers that the server reports.",
    )


def _ratios(samples: Samples, rows: Sequence[Row], servers: Sequence[str]) -> tuple[list[Table], list[Table]]:
    """Ratios of the figures that the loads are made for, and of all others. Above 1 the first server is better."""
    first, *others = servers
    wanted: list[tuple[Cell, ...]] = []
    others_: list[tuple[Cell, ...]] = []
    for row in rows:
        for figure, measure in MEASURES.items():
            values = {server: samples.values(row.label, server, figure) for server in servers}
            if not values[first] or not any(values[other] for other in others):
                continue
            medians = (median(values[server]).value if values[server] else None for server in servers)
            ratios = (_advantage(values[first], values[other], measure) if values[other] else None for other in others)
            table = wanted if figure in row.point.figures else others_
            table.append((row.label, measure.title, *medians, *ratios))
    columns = ("load", "measure", *servers, *(f"times as good as {other}" for other in others))
    note = (
        f"A ratio above 1 means that {first} is better, also where less is better. If its interval includes 1, no "
        "difference is shown."
    )
    titled = ((f"{first} compared with the others", wanted), ("Other figures", others_))
    in_this, in_that = ([Table(title, columns, found, note)] if found else [] for title, found in titled)
    return in_this, in_that


def _guesses(samples: Samples, labels: Sequence[str], servers: Sequence[str]) -> list[Table]:
    rows: list[tuple[Cell, ...]] = []
    for label in labels:
        for server in servers:
            answered = samples.requests(label, server, *KINDS)
            drafted, accepted = sum(one.drafted or 0 for one in answered), sum(one.accepted or 0 for one in answered)
            if drafted:
                tokens = sum(one.tokens for one in answered)
                steps = max(tokens - accepted, 1)
                rows.append((label, server, drafted, accepted, f"{accepted / drafted:.0%}", tokens / steps))
    columns = ("load", "server", "drafted tokens", "accepted", "share", "tokens per step")
    note = "As the server reports them. Tokens per step: of each answer; an accepted token needs no step of its own."
    return [Table("Guessed tokens", columns, rows, note)] if rows else []


def _errors(samples: Samples, labels: Sequence[str], servers: Sequence[str]) -> list[Table]:
    rows: list[tuple[Cell, ...]] = []
    for label in labels:
        for server in servers:
            failed = [one for one in samples.all(label, server) if one.error]
            for kind, count in Counter(one.error for one in failed).most_common():
                first = next(one.message for one in failed if one.error == kind)
                rows.append((label, server, kind, count, first))
    return [Table("Errors", ("load", "server", "kind", "number", "first message"), rows)] if rows else []


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
            result = samples.all(label, server)
            if failed := sum(bool(one.error) for one in result):
                notes.append(f"{label} on {server}: {failed} of {len(result)} requests failed")
            if short := sum(one.tokens < one.asked for one in result if not (one.error or one.left)):
                notes.append(f"{label} on {server}: {short} answers were shorter than requested")
    return notes


def _compared(first: str, other: str, ratio: Estimate, measure: Measure) -> str:
    """The ratio of the table in words."""
    more, less = (first, other) if measure.better == "higher" else (other, first)
    return f"{more} {in_words(ratio, f'{measure.words} as {less}')}"


def _advantage(first: Sequence[float], other: Sequence[float], measure: Measure) -> Estimate:
    return ratio_of_medians(first, other) if measure.better == "higher" else ratio_of_medians(other, first)


def _median(values: Sequence[float]) -> Estimate | None:
    return median(values) if values else None


def _tails(values: Sequence[float]) -> tuple[Cell, Cell, Cell]:
    p95, p99 = (quantile(values, percent) if len(values) >= fewest else None for percent, fewest in _TAILS.items())
    return _median(values), p95, p99


def _tokens(result: Sequence[RequestResult]) -> tuple[float | None, float | None]:
    prompts = [one.prompt_tokens for one in result if one.prompt_tokens is not None]
    cached = [one.cached_tokens for one in result if one.cached_tokens is not None]
    return statistics.median(prompts) if prompts else None, statistics.median(cached) if cached else None
