"""Renders points as Prometheus text. It takes milliseconds with many models, so it runs on a thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from math import inf

from prometheus_client import Metric, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import CollectorRegistry

from paddock.gateway.ops.metrics.collecting import Point
from paddock.tally import Histogram

# Every scraper reads this version. In later ones the library writes llama-server's colons as underscores.
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


def render(points: Iterable[Point]) -> bytes:
    return generate_latest(_Page(points))


class _Page(CollectorRegistry):
    """A registry of the given points and of this process."""

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
                # The library adds `_total` again in formats that require it.
                metric = Metric(family.name.removesuffix("_total"), family.help, family.kind)
                metrics[family.name] = metric
            labels = dict(zip(family.labels, point.labels, strict=True))
            if isinstance(point.value, Histogram):
                _add_histogram(metric, point.value, labels)
            else:
                metric.add_sample(family.name, labels, float(point.value))
        yield from metrics.values()
        yield from super().collect()


def _add_histogram(metric: Metric, histogram: Histogram, labels: dict[str, str]) -> None:
    for bound, count in zip((*histogram.bounds, inf), accumulate(histogram.counts), strict=True):
        metric.add_sample(
            f"{metric.name}_bucket", labels | {"le": "+Inf" if bound == inf else str(float(bound))}, count
        )
    metric.add_sample(f"{metric.name}_count", labels, histogram.count)
    metric.add_sample(f"{metric.name}_sum", labels, histogram.sum)
