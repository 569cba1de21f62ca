"""The metrics page of one gateway or, on a cluster, of all gateways."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
from fastapi import APIRouter
from fastapi.responses import Response

from paddock.batches import Batches
from paddock.errors import NotSupported
from paddock.fleet import Fleet
from paddock.gateway.http.openapi import TEXT, describe
from paddock.gateway.http.request_counts import HTTPCounts
from paddock.gateway.ops.metrics.collecting import Point, Points, collect, libraries
from paddock.gateway.ops.metrics.families import FAMILIES
from paddock.gateway.ops.metrics.gpus import Gpus
from paddock.gateway.ops.metrics.processes import read_processes
from paddock.gateway.ops.metrics.rendering import CONTENT_TYPE, render
from paddock.libraries import sha256_by_file
from paddock.tally import Histogram
from paddock.types import LibraryInfo

_SHARED: Final = frozenset(
    {"llama_slots_processing", "llama_tokens_generated_total", "paddock_build_info"}
    | {"paddock_replica_health", "paddock_replica_drained", "paddock_replica_running_requests"}
    | {name for name in FAMILIES if name.startswith("llamacpp:")}
)
"""Metrics that replicas count, so that every gateway has the same values. Each gateway counts all others itself."""


class _Sample(msgspec.Struct, frozen=True, array_like=True):
    name: str
    labels: tuple[str, ...]
    value: float | Histogram


_decoder = msgspec.msgpack.Decoder(list[_Sample])


class MetricsPage:
    def __init__(
        self, fleet: Fleet, http: HTTPCounts, gpus: Gpus | None = None, batches: Batches | None = None
    ) -> None:
        self._fleet = fleet
        self._http = http
        self._gpus = gpus or Gpus()
        self._batches = batches
        self.started_at = int(time.time())
        """The start of the server, in seconds since 1970."""
        self.gather: Callable[[], Awaitable[Mapping[str, bytes]]] | None = None
        """Returns the samples of each gateway by its name, where there are several."""

    async def text(self) -> bytes:
        pages = await self.gather() if self.gather is not None else {}
        points = one_page(pages) if pages else await self._points()
        return await asyncio.to_thread(render, points)

    async def own(self) -> bytes:
        """The samples of this gateway, for the gateway that is scraped."""
        points = await self._points()
        return msgspec.msgpack.encode(
            [_Sample(point.family.name, point.labels, _plain(point.value)) for point in points]
        )

    async def _points(self) -> Points:
        processes = await asyncio.to_thread(
            read_processes, [status.pid for status in self._fleet.worker_statuses() if status.pid]
        )
        digests = await asyncio.to_thread(_digests, libraries(self._fleet))
        return collect(self._fleet, self._http, processes, await self._gpus.sample(), digests, self._batches)


def _digests(found: Iterable[LibraryInfo]) -> dict[LibraryInfo, str]:
    """The SHA-256 of each library's own file; empty: it is gone."""
    return {library: next(iter(sha256_by_file(Path(library.path)).values()), "") for library in found}


def _plain(value: float | Histogram) -> float | Histogram:
    """Booleans as numbers: MessagePack distinguishes them."""
    return value if isinstance(value, Histogram) else float(value)


def one_page(pages: Mapping[str, bytes]) -> list[Point]:
    """The samples of all gateways. What each gateway counts itself has the gateway as one more label: a sum would
    decrease when a gateway ends, which Prometheus takes for a restart of all.
    """
    points: list[Point] = []
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for gateway, page in pages.items():
        for sample in _decoder.decode(page):
            family = FAMILIES[sample.name]
            if sample.name not in _SHARED:
                labelled = replace(family, labels=(*family.labels, "gateway"))
                points.append(Point(labelled, (*sample.labels, gateway), sample.value))
            elif (sample.name, sample.labels) not in seen:
                seen.add((sample.name, sample.labels))
                points.append(Point(family, sample.labels, sample.value))
    return points


def metrics_routes(page: MetricsPage, *, enabled: bool) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/metrics", **describe(text=TEXT))
    async def metrics() -> Response:
        """All metrics, for Prometheus. Loads no model."""
        if not enabled:
            raise NotSupported("This server does not support metrics endpoint. Start it with `--metrics`")
        headers = {"Process-Start-Time-Unix": str(page.started_at)}
        return Response(await page.text(), headers=headers, media_type=CONTENT_TYPE)

    return router
