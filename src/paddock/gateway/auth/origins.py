"""The allowed origins of web pages, which a reload of the settings replaces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send


class Origins:
    """The allowed origins. They are read for every request, because a reload replaces them."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self.replace(allowed)

    def replace(self, allowed: Iterable[str]) -> None:
        self.given = tuple(allowed)
        """As written in the settings."""
        self.known = frozenset(origin.rstrip("/").lower() for origin in self.given)
        """Normalized to lower case, to compare with the Origin header."""


class CrossOrigin:
    """Starlette's CORS middleware, created again when the origins change."""

    def __init__(self, app: ASGIApp, origins: Origins, methods: Sequence[str], expose: Sequence[str]) -> None:
        self._app = app
        self._origins = origins
        self._methods = methods
        self._expose = expose
        self._current = origins.given
        self._layer = self._create()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._current != self._origins.given:
            self._current, self._layer = self._origins.given, self._create()
        await self._layer(scope, receive, send)

    def _create(self) -> CORSMiddleware:
        return CORSMiddleware(
            self._app,
            allow_origins=self._origins.given,
            allow_methods=self._methods,
            allow_headers=["*"],
            expose_headers=self._expose,
        )
