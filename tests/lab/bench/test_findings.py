from __future__ import annotations

from typing import Any

import pytest

from paddock_lab.bench.experiment import Place, Sample, Span, rows_of
from paddock_lab.bench.findings import findings
from paddock_lab.bench.loads import Figure, Load, points
from paddock_lab.bench.samples import MEASURES
from paddock_lab.bench.window import RequestResult
from paddock_lab.report import Findings, Table
from paddock_lab.statistics import Estimate, number


def _rows(**keys: Any) -> Any:
    return rows_of(list(points({"x": Load(**{"concurrency": 2, "requests": 10, **keys})})))


def _sample(server: str, first_token: float, round: int = 0, **more: Any) -> Sample:
    times = [first_token, first_token + 0.01, first_token + 0.05, first_token + 0.06]
    result = {"kind": "first", "sent": 0.0, "done": times[-1], "asked": 4, "tokens": 4, "times": times}
    return Sample(Place(round, "x", server), RequestResult(**{**result, **more}))


def _span(server: str, round: int, tokens: int, client: float = 0.01, others: float | None = 0.0) -> Span:
    return Span(Place(round, "x", server), 2.0, 10, tokens, client, others)


def _table(found: Findings, title: str) -> Table:
    return next(table for table in found.tables if table.title == title)


def _ratio(found: Findings, measure: str) -> Estimate:
    titles = ("a compared with the others", "Other figures")
    rows = [row for title in titles for row in _table(found, title).rows]
    ratio = next(row[-1] for row in rows if str(row[1]).startswith(measure))
    assert isinstance(ratio, Estimate)
    return ratio


def test_a_ratio_above_one_means_that_the_first_server_is_better() -> None:
    requests = [_sample(server, first, number) for server, first in (("a", 0.1), ("b", 0.2)) for number in range(6)]
    spans = [_span(server, number, tokens) for server, tokens in (("a", 300), ("b", 100)) for number in range(6)]
    found = findings(requests, spans, _rows(), ["a", "b"])
    assert _ratio(found, "first token (ms)").value == pytest.approx(2)
    assert _ratio(found, "tokens/s").value == pytest.approx(3)
    assert _ratio(found, "longest stall").value == pytest.approx(1)
    assert [row[1] for row in _table(found, "a compared with the others").rows] == ["tokens/s", "first token (ms)"]
    speed, first = found.summary
    assert speed.startswith("x: tokens/s: a 150, b 50.0; a 3.00 times as many tokens per second as b (95 %")
    assert first.startswith("x: first token (ms): a 100, b 200; b 2.00 times as long to the first token as a (95 %")


@pytest.mark.parametrize("figure", list(MEASURES))
@pytest.mark.parametrize("better", ["a", "b"])
def test_the_headline_has_the_ratio_of_the_table_for_every_measure(figure: Figure, better: str) -> None:
    seconds = {"a": 0.1, "b": 0.3} if better == "a" else {"a": 0.3, "b": 0.1}
    requests = [
        _sample(server, each, round, kind=kind, times=[each, 2 * each, 5 * each], done=5 * each)
        for server, each in seconds.items()
        for round in range(6)
        for kind in ("first", "later", "long")
    ]
    spans = [
        Span(Place(round, "x", server), 10 * each, 10, 40, 0.0, 0.0)
        for server, each in seconds.items()
        for round in range(6)
    ]
    found = findings(requests, spans, _rows(shows=[figure], interference=9, turns=2), ["a", "b"])
    ratio = _table(found, "a compared with the others").rows[0][-1]
    assert isinstance(ratio, Estimate)
    assert (ratio.value > 1) == (better == "a")
    (line,) = found.summary
    assert f" {number(ratio.value)} times as " in line, "the headline has the table's own number"


def test_no_difference_is_stated() -> None:
    requests = [_sample(server, 0.1 + number / 100, number) for server in ("a", "b") for number in range(6)]
    found = findings(requests, [], _rows(shows=["first token"]), ["a", "b"])
    (line,) = found.summary
    assert "includes 1: no difference shown" in line


def test_warm_ups_and_failures_are_left_out_and_failures_are_counted_by_kind() -> None:
    requests = [
        _sample("a", 0.1),
        _sample("a", 9.0, kind="warm-up"),
        _sample("a", 9.0, kind="long"),
        *(_sample("a", 9.0, error="HTTP 429", message="busy", times=()) for _ in range(2)),
        _sample("a", 9.0, error="timeout", message="", times=()),
        _sample("a", 0.1, left=True, tokens=2),
        _sample("a", 0.1, tokens=3),
    ]
    found = findings(requests, [_span("a", 0, 50)], _rows(), ["a"])
    (loads,) = _table(found, "Loads").rows
    assert loads[:5] == ("x", "a", 7, 3, 1)
    assert [row[:4] for row in _table(found, "Time to the first token").rows] == [
        ("x", "first turn", "a", 3),
        ("x", "long prompts", "a", 1),
    ]
    assert [row[2:] for row in _table(found, "Errors").rows] == [("HTTP 429", 2, "busy"), ("timeout", 1, "")]
    assert found.notes == ["x on a: 3 of 8 requests failed", "x on a: 1 answers were shorter than requested"]


@pytest.mark.parametrize(
    ("count", "known"), [(19, (True, False, False)), (20, (True, True, False)), (100, (True,) * 3)]
)
def test_percentiles_are_shown_if_there_are_enough_requests(count: int, known: tuple[bool, ...]) -> None:
    found = findings([_sample("a", 0.1 + number / 1000) for number in range(count)], [], _rows(), ["a"])
    (row,) = _table(found, "Time to the first token").rows
    assert tuple(isinstance(cell, Estimate) for cell in row[4:7]) == known


def test_the_longest_stall_is_per_round() -> None:
    requests = [
        _sample("a", 0.1, 0),
        _sample("a", 0.1, 0, times=[0.0, 3.0]),
        _sample("a", 0.1, 1, times=[0.0, 1.0]),
        _sample("a", 0.1, 1, kind="long", times=[0.0, 50.0]),
    ]
    found = findings(requests, [], _rows(interference=9), ["a"])
    assert found.summary[0] == "x: longest stall (ms): a 2000."
    assert [picture.name for picture in found.pictures] == ["ttft", "x-timeline"]


def test_a_busy_client_is_noted_once_for_its_worst_load() -> None:
    spans = [_span("a", 0, 50, client=0.2), _span("a", 1, 50, client=0.5, others=0.9), _span("b", 0, 50, others=None)]
    found = findings([], spans, _rows(), ["a", "b"])
    assert found.notes == [
        "a: the client used 50% of a core, in x",
        "a: other processes used 90% of a core, in x",
    ]


def test_guessed_tokens_are_shown_for_the_servers_that_report_them() -> None:
    requests = [
        *(_sample("a", 0.1, tokens=50, drafted=30, accepted=20) for _ in range(2)),
        _sample("a", 0.1, tokens=50),
        _sample("a", 0.1, kind="warm-up", tokens=50, drafted=40, accepted=40),
        _sample("b", 0.1, tokens=50),
    ]
    table = _table(findings(requests, [], _rows(), ["a", "b"]), "Guessed tokens")
    assert table.rows == [("x", "a", 60, 40, "67%", 150 / 110)]
    none = findings(requests[-1:], [], _rows(), ["a", "b"])
    assert all(table.title != "Guessed tokens" for table in none.tables)


def test_no_measurements_give_no_findings() -> None:
    found = findings([], [], _rows(concurrency=[1, 2]), ["a", "b"])
    assert (found.summary, found.pictures, found.notes) == ([], [], [])
