"""A worker metric is declared once, at its field in `tally.py`. Everything else derives from it."""

from __future__ import annotations

from typing import Annotated

import pytest

from paddock.gateway.ops.metrics import collecting
from paddock.gateway.ops.metrics.collecting import Points
from paddock.gateway.ops.metrics.families import FAMILIES, Family, worker_families
from paddock.tally import Levels, Metric, Tally, metrics_of

_WORKER = ("model_id", "pool", "replica")


class _Tally(Tally, array_like=True):
    retries: Annotated[int, Metric("paddock_test_total", "Steps", "Retries.", ("cause", "crash"))] = 0


class _Levels(Levels, frozen=True, array_like=True):
    depth: Annotated[int, Metric("paddock_test_depth", "Steps", "Depth.")] = 0


def test_a_declared_field_becomes_a_family() -> None:
    assert worker_families(_Tally, "Steps")[-1] == Family(
        "paddock_test_total", "counter", "Retries.", (*_WORKER, "cause")
    )
    assert worker_families(_Levels, "Steps")[-1] == Family("paddock_test_depth", "gauge", "Depth.", _WORKER)
    kinds = {family.name: family.kind for family in worker_families(_Tally, "Steps")}
    assert kinds["paddock_queue_seconds"] == "histogram"


def test_a_declared_field_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    family = worker_families(_Tally, "Steps")[-1]
    monkeypatch.setitem(FAMILIES, family.name, family)
    monkeypatch.setattr(collecting, "_TALLY", metrics_of(_Tally))
    points = Points()
    points.put_tally(_Tally(retries=3), "counter", ("m", "default", "0"))
    assert (points[-1].family, points[-1].labels, points[-1].value) == (family, ("m", "default", "0", "crash"), 3)


def test_every_declared_metric_is_in_a_section() -> None:
    declared = [*metrics_of(Tally).values(), *metrics_of(Levels).values()]
    assert {metric.name for metric in declared} <= FAMILIES.keys()
