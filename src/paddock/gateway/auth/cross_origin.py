"""Which web pages of other origins may use the server, and what browsers are told about it (CORS)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from paddock.config import ANY_LOCAL_ORIGIN, ServerSettings

_LOCAL: Final = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?"


@dataclass(frozen=True, slots=True)
class CrossOriginRules:
    origins: tuple[str, ...]
    """As written in the settings."""
    methods: tuple[str, ...]
    headers: tuple[str, ...]
    credentials: bool

    @classmethod
    def of(cls, settings: ServerSettings) -> CrossOriginRules:
        return cls(
            tuple(settings.cors_origins),
            tuple(settings.cors_methods),
            tuple(settings.cors_headers),
            settings.cors_credentials,
        )


class Origins:
    """The allowed origins. They are read for every request, because a reload replaces them."""

    def __init__(self, settings: ServerSettings) -> None:
        self.replace(settings)

    def replace(self, settings: ServerSettings) -> None:
        self.rules = CrossOriginRules.of(settings)
        self._known = frozenset(origin.rstrip("/").lower() for origin in self.rules.origins)

    @property
    def allow_all(self) -> bool:
        return "*" in self._known

    def allow(self, origin: str) -> bool:
        """Whether pages of this origin may use the server. `origin` is the value of the Origin header."""
        origin = origin.lower()
        is_local = ANY_LOCAL_ORIGIN in self._known and re.fullmatch(_LOCAL, origin) is not None
        return self.allow_all or is_local or origin in self._known - {ANY_LOCAL_ORIGIN}


def cross_origin(app: ASGIApp, origins: Origins, expose: Sequence[str]) -> ASGIApp:
    """Starlette's CORS middleware, created again when the rules change."""

    @lru_cache(maxsize=1)
    def layer(rules: CrossOriginRules) -> CORSMiddleware:
        # With credentials, browsers refuse `*`: the origin itself is the answer, as llama-server answers.
        echo = "*" in rules.origins and rules.credentials
        local = ANY_LOCAL_ORIGIN in rules.origins
        return CORSMiddleware(
            app,
            [origin for origin in rules.origins if origin != ANY_LOCAL_ORIGIN and not echo],
            rules.methods,
            rules.headers,
            allow_credentials=rules.credentials,
            allow_origin_regex=".*" if echo else f"(?i:{_LOCAL})" if local else None,
            expose_headers=expose,
        )

    async def middleware(scope: Scope, receive: Receive, send: Send) -> None:
        await layer(origins.rules)(scope, receive, send)

    return middleware
