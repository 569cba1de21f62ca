"""The metrics page of one gateway or, on a cluster, of all gateways."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final

import msgspec

from paddock.fleet import Fleet
from paddock.gateway.ops.metrics.collecting import Point, Points, collect
from paddock.gateway.ops.metrics.families import FAMILIES
from paddock.gateway.ops.metrics.gpus import Gpus
from paddock.gateway.ops.metrics.http import HTTPCounts
from paddock.gateway.ops.metrics.processes import look_at
from paddock.gateway.ops.metrics.rendering import render
from paddock.tally import Histogram

_SEEN: Final = frozenset(
    {"llama_slots_processing", "llama_tokens_generated_total", "paddock_build_info"}
    | {"paddock_replica_health", "paddock_replica_drained", "paddock_replica_running_requests"}
    | {name for name in FAMILIES if name.startswith("llamacpp:")}
)
"""Metrics that replicas count, so that every gateway has the same values. Each gateway counts all others itself."""


class _Said(msgspec.Struct, frozen=True, array_like=True):
    name: str
    labels: tuple[str, ...]
    value: float | Histogram


_said = msgspec.msgpack.Decoder(list[_Said])


class MetricsPage:
    def __init__(self, fleet: Fleet, http: HTTPCounts, gpus: Gpus | None = None) -> None:
        self._fleet = fleet
        self._http = http
        self._gpus = gpus or Gpus()
        self.gather: Callable[[], Awaitable[Mapping[str, bytes]]] | None = None
        """Where there are several gateways: what each of them says, by its name."""

    async def text(self) -> bytes:
        said = await self.gather() if self.gather is not None else {}
        points = one_page(said) if said else await self._points()
        return await asyncio.to_thread(render, points)

    async def own(self) -> bytes:
        """What this gateway says, for the one that was asked."""
        points = await self._points()
        return msgspec.msgpack.encode([_Said(point.family.name, point.labels, _plain(point.value)) for point in points])

    async def _points(self) -> Points:
        processes = await asyncio.to_thread(
            look_at, [status.pid for status in self._fleet.worker_statuses() if status.pid]
        )
        return collect(self._fleet, self._http, processes, await self._gpus.look())


def _plain(value: float | Histogram) -> float | Histogram:
    """Yes and no are numbers too, but not in every language."""
    return value if isinstance(value, Histogram) else float(value)


def one_page(said: Mapping[str, bytes]) -> list[Point]:
    """What gateways count has one more label, which says whose it is. Adding it up would go down whenever one of them
    leaves, which Prometheus takes for a restart of all.
    """
    points: list[Point] = []
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for gateway, page in said.items():
        for one in _said.decode(page):
            family = FAMILIES[one.name]
            if one.name not in _SEEN:
                labelled = replace(family, labels=(*family.labels, "gateway"))
                points.append(Point(labelled, (*one.labels, gateway), one.value))
            elif (one.name, one.labels) not in seen:
                seen.add((one.name, one.labels))
                points.append(Point(family, one.labels, one.value))
    return points
