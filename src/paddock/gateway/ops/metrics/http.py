"""HTTP requests, counted by route. Unknown paths and methods do not create series."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sized
from functools import partial

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paddock.gateway.http.body_budget import BodyBudget
from paddock.gateway.http.scope import IS_STREAM, JOB, MODEL, route_of
from paddock.tally import WAITS, Histogram

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_CLIENT_LEFT = 499


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

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """Wrap an application."""
        return partial(self._count, app)

    async def _count(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await app(scope, receive, send)
        status, streams, begun = _CLIENT_LEFT, 0, time.perf_counter()

        async def watch(message: Message) -> None:
            nonlocal status, streams
            if message["type"] == "http.response.start":
                status = message["status"]
                streams = IS_STREAM in scope
                self.streams += streams
            await send(message)

        self.in_progress += 1
        try:
            await app(scope, receive, watch)
        except Exception:
            status = 500 if status == _CLIENT_LEFT else status
            raise
        finally:
            self.in_progress -= 1
            self.streams -= streams
            self._ended(scope, status, time.perf_counter() - begun)

    def _ended(self, scope: Scope, status: int, seconds: float) -> None:
        route = route_of(scope)
        self.requests[scope["method"] if scope["method"] in _METHODS else "other", route, status] += 1
        self.seconds.setdefault(route, Histogram.of(WAITS)).observe(seconds)
        if model := scope.get(MODEL):
            self.for_models[route, model] += 1
            self.jobs[model] += JOB in scope
