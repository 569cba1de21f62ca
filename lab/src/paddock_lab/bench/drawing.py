"""The charts of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paddock_lab.bench.experiment import Row
from paddock_lab.bench.loads import Figure
from paddock_lab.bench.samples import MEASURES, Samples
from paddock_lab.bench.window import RequestResult
from paddock_lab.report import Picture
from paddock_lab.report.pictures import distributions, lines, timelines
from paddock_lab.statistics import median

_OVER_LOAD: Mapping[Figure, str] = {"first token": "ttft", "tokens/s": "tokens"}
"""The figures of the curves, and their file names."""


def pictures(samples: Samples, rows: Sequence[Row], servers: Sequence[str]) -> list[Picture]:
    by_load = {
        (row.label, server): values
        for row in rows
        for server in servers
        if (values := samples.values(row.label, server, "first token"))
    }
    if not by_load:
        return []
    title = "Time to the first token: every request, median and quartiles"
    drawn = [Picture("ttft", title, distributions(by_load, "time to the first token (ms)"))]
    return [*drawn, *_curves(samples, rows, servers), *_timelines(samples, rows, servers)]


def _curves(samples: Samples, rows: Sequence[Row], servers: Sequence[str]) -> list[Picture]:
    """Curves of loads with several numbers of clients or rates."""
    drawn = []
    for load in dict.fromkeys(row.load for row in rows):
        of_load = [row for row in rows if row.load == load]
        strengths = {row.label: float(row.point.clients or row.point.rate or 0) for row in of_load}
        if len(set(strengths.values())) < 2:
            continue
        x_label = "concurrent clients" if of_load[0].point.clients else "requests started per second"
        for figure, short in _OVER_LOAD.items():
            series = {
                f"{server} {name}".strip(): points
                for server in servers
                for name in dict.fromkeys(row.pass_name for row in of_load)
                if (points := _curve(samples, [row for row in of_load if row.pass_name == name], server, figure))
            }
            if series:
                file_name = f"{_file_name(load)}-{short}-over-load"
                title = f"{load}: {MEASURES[figure].title}, median, over the load"
                drawn.append(Picture(file_name, title, lines(series, x_label, MEASURES[figure].title, marked=True)))
    return drawn


def _curve(samples: Samples, rows: Sequence[Row], server: str, figure: Figure) -> list[tuple[float, float]]:
    found = [(row, samples.values(row.label, server, figure)) for row in rows]
    return [(float(row.point.clients or row.point.rate or 0), median(values).value) for row, values in found if values]


def _timelines(samples: Samples, rows: Sequence[Row], servers: Sequence[str]) -> list[Picture]:
    """Timelines of loads with interference; without any, of the load with the longest stall."""
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
            f"{label}: arrival of tokens, in the stream with the longest stall of each server",
            timelines({server: one.times for server, one in worst[label].items()}),
        )
        for label in disturbed
    ]


def _most_stalled(samples: Samples, label: str, server: str) -> RequestResult | None:
    streams = [one for one in samples.requests(label, server, "first", "later") if len(one.times) > 1]
    return max(streams, key=_stall, default=None)


def _stall(result: RequestResult) -> float:
    return result.longest_stall or 0.0


def _file_name(label: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in label)
