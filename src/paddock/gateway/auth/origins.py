"""Whose web pages may ask, as of the last reload of the settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send


class Origins:
    """The allowed origins. Whoever decides by them asks with every request, because a reload replaces them."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self.replace(allowed)

    def replace(self, allowed: Iterable[str]) -> None:
        self.given = tuple(allowed)
        """As the settings have them."""
        self.known = frozenset(origin.rstrip("/").lower() for origin in self.given)
        """To be compared with what a browser sends, in lower case."""


class CrossOrigin:
    """Starlette's CORS layer, made anew when the origins have changed."""

    def __init__(self, app: ASGIApp, origins: Origins, methods: Sequence[str], expose: Sequence[str]) -> None:
        self._app = app
        self._origins = origins
        self._methods = methods
        self._expose = expose
        self._made_for = origins.given
        self._layer = self._made()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._made_for != self._origins.given:
            self._made_for, self._layer = self._origins.given, self._made()
        await self._layer(scope, receive, send)

    def _made(self) -> CORSMiddleware:
        return CORSMiddleware(
            self._app,
            allow_origins=self._origins.given,
            allow_methods=self._methods,
            allow_headers=["*"],
            expose_headers=self._expose,
        )
