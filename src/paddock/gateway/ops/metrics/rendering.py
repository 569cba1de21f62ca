"""Renders points as Prometheus text. It takes milliseconds with many models, so it runs on a thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from math import inf, isinf

from prometheus_client import Metric, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import CollectorRegistry

from paddock.gateway.ops.metrics.collecting import Point
from paddock.tally import Histogram

# The one that everybody reads. In others the library writes llama-server's colons as underscores.
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


def render(points: Iterable[Point]) -> bytes:
    return generate_latest(_Page(points))


class _Page(CollectorRegistry):
    """A registry of nothing but what is given to it."""

    def __init__(self, points: Iterable[Point]) -> None:
        super().__init__()
        self._points = points
        ProcessCollector(registry=self)

    def collect(self) -> Iterator[Metric]:
        metrics: dict[str, Metric] = {}
        for point in self._points:
            family = point.family
            metric = metrics.get(family.name)
            if metric is None:
                # The library puts the end of a counter's name back where a format wants it.
                metric = metrics[family.name] = Metric(family.name.removesuffix("_total"), family.help, family.kind)
            labels = dict(zip(family.labels, point.labels, strict=True))
            if isinstance(point.value, Histogram):
                _add(metric, point.value, labels)
            else:
                metric.add_sample(family.name, labels, float(point.value))
        yield from metrics.values()
        yield from super().collect()


def _add(metric: Metric, histogram: Histogram, labels: dict[str, str]) -> None:
    bounds = [*histogram.bounds, inf]
    for bound, count in zip(bounds, accumulate(histogram.counts), strict=True):
        metric.add_sample(
            f"{metric.name}_bucket", labels | {"le": "+Inf" if isinf(bound) else str(float(bound))}, count
        )
    metric.add_sample(f"{metric.name}_count", labels, histogram.count)
    metric.add_sample(f"{metric.name}_sum", labels, histogram.sum)
