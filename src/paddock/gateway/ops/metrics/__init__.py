"""`/metrics`: all metrics in one scrape, which loads no model and waits for none."""

from paddock.gateway.ops.metrics.http import HTTPCounts
from paddock.gateway.ops.metrics.page import MetricsPage
from paddock.gateway.ops.metrics.routes import metrics_routes

__all__ = ["HTTPCounts", "MetricsPage", "metrics_routes"]
