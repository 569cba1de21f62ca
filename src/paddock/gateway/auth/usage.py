"""The usage of each key since the server started."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from paddock.gateway.auth.caller import caller_of
from paddock.gateway.http.openapi import describe
from paddock.gateway.http.responses import JSON


class KeyUsage(msgspec.Struct, kw_only=True):
    """Counts requests to models, and the tokens of answers when they end. No number ever decreases."""

    key: str
    """Its name; empty on a server without keys."""
    requests: int = 0
    """All requests, also those that failed."""
    errors: int = 0
    """Requests that were refused or failed, also in the middle of an answer."""
    rate_limited: int = 0
    """Errors because a limit of the key was reached."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that were in the cache."""
    completion_tokens: int = 0


class UsageBook:
    """One account per key name, created on first use."""

    def __init__(self) -> None:
        self.since = int(time.time())
        self._keys: dict[str, KeyUsage] = {}

    def of(self, name: str) -> KeyUsage:
        return self._keys.setdefault(name, KeyUsage(key=name))

    def __iter__(self) -> Iterator[KeyUsage]:
        return iter(self._keys.values())


class AllUsage(msgspec.Struct, kw_only=True):
    since: int
    """The Unix time at which the server started."""
    keys: list[KeyUsage]


class OwnUsage(KeyUsage, kw_only=True):
    since: int


def usage_routes(book: UsageBook) -> APIRouter:
    router = APIRouter(tags=["usage"])

    @router.get("/admin/usage", **describe(AllUsage))
    async def show_all_usage() -> Response:
        """The usage of every key since the server started."""
        return JSON(AllUsage(since=book.since, keys=list(book)))

    @router.get("/v1/usage", **describe(OwnUsage))
    async def show_usage(request: Request) -> Response:
        """The usage of the caller's key since the server started."""
        own = book.of(caller_of(request).name)
        return JSON(OwnUsage(since=book.since, **msgspec.structs.asdict(own)))

    return router
