"""HTTP requests, counted by route. Unknown paths and methods do not create series."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sized
from typing import Protocol

from starlette.types import Scope

from paddock.errors import ClientLeft
from paddock.gateway.http.body_budget import BodyBudget
from paddock.gateway.http.scope import IS_STREAM, JOB, MODEL, STATUS, route_of
from paddock.tally import WAITS, Histogram

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Buffers(Protocol):
    """Streams that can be resumed (`generation/stream_buffers.py`)."""

    resumed: int

    @property
    def count(self) -> int: ...

    @property
    def held(self) -> int: ...


class ToolCalls(Protocol):
    """Calls of tools (`paddock.mcp`)."""

    calls: Counter[tuple[str, str, str]]
    """By MCP server, key and outcome."""
    seconds: dict[str, Histogram]
    """By MCP server."""


class HTTPCounts:
    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        """By method, route and status."""
        self.for_models: Counter[tuple[str, str]] = Counter()
        """By route and model."""
        self.jobs: Counter[str] = Counter()
        """Requests that were part of a job, by model."""
        self.seconds: dict[str, Histogram] = {}
        self.in_progress = 0
        self.streams = 0
        self.connections: Sized = ()
        self.bodies: BodyBudget | None = None
        self.stream_buffers: Buffers | None = None
        self.tools: ToolCalls | None = None

    def started(self, scope: Scope, status: int) -> None:
        """Count the status of a response, which is about to be sent."""
        scope[STATUS] = status
        self.streams += IS_STREAM in scope

    def ended(self, scope: Scope, seconds: float) -> None:
        self.in_progress -= 1
        self.streams -= IS_STREAM in scope and STATUS in scope
        route = route_of(scope)
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self.requests[method, route, scope.get(STATUS, ClientLeft.status)] += 1
        self.seconds.setdefault(route, Histogram.of(WAITS)).observe(seconds)
        if model := scope.get(MODEL):
            self.for_models[route, model] += 1
            self.jobs[model] += JOB in scope
