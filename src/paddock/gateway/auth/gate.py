"""Authentication: API keys, stored as hashes and compared in constant time."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import Request

from paddock.errors import AuthenticationError, OriginNotAllowed, PermissionDenied, TooManyFailures
from paddock.gateway.auth.caller import ANONYMOUS_ADMIN, Caller, caller_of, require_admin
from paddock.gateway.auth.failed_keys import FailedKeys
from paddock.gateway.auth.keys import Key, digest
from paddock.gateway.auth.limits import Limits, Rates, duration
from paddock.gateway.auth.metering import Meter
from paddock.gateway.auth.permissions import Need
from paddock.gateway.auth.usage import UsageBook
from paddock.gateway.http.connection_slots import REQUEST_ENTRY, RequestEntry, Use
from paddock.gateway.http.scope import (
    AUDITED,
    BATCH_CALLER,
    CALLER,
    FOREIGN,
    HEALTH_PATHS,
    KEY_NAME,
    METER,
    owner_of,
    route_of,
)

_WATCHED = frozenset({"/models/sse", "/live"})


class Gate:
    """A FastAPI dependency of every route, which admits a request or raises. Without keys every caller is an admin."""

    def __init__(self, keys: list[Key], usage: UsageBook, clock: Callable[[], float] = time.time) -> None:
        """`clock` returns the Unix time, by which keys expire."""
        self._clock = clock
        self._failures = FailedKeys()
        self._keys: list[Key] = []
        self._usage = usage
        self._limits: dict[str, Limits] = {}
        self._needs: Mapping[Any, Need] = {}
        self.replace(keys)

    def guard(self, needs: Mapping[Any, Need]) -> None:
        """Set the permission that each endpoint requires."""
        self._needs = needs

    @property
    def has_keys(self) -> bool:
        return bool(self._keys)

    def replace(self, keys: list[Key]) -> None:
        """Replace the keys. Requests that are running continue, and the usage of each name is kept."""
        now = time.monotonic()
        self._keys = keys
        for key in keys:
            self._limits_of(key.caller.name).change(key.rates, now)
            self._usage.of(key.caller.name)

    def still_admits(self, caller: Caller) -> bool:
        """Whether a caller that was admitted before would be admitted again, with the same rights."""
        if not self._keys:
            return caller is ANONYMOUS_ADMIN
        now = self._clock()
        return any(key.caller == caller and not key.is_expired(now) for key in self._keys)

    async def __call__(self, request: Request) -> None:
        need = self._needs[request.scope["endpoint"]]
        if need == "open":
            _count_request(request, need)
            return
        if need == "admin" and request.method != "GET":
            request.scope[AUDITED] = {}  # before the key is checked: refusals are audited too
        request.scope[CALLER] = caller = self._identify(request)
        request.scope[KEY_NAME] = caller.name
        if need == "admin":
            require_admin(request)
            if not self._keys and FOREIGN in request.scope:
                # Pages of `cors_origins` may use models. Admin routes require a key, which a page does not know.
                raise OriginNotAllowed(
                    "web pages of other origins may not use this route on a server without API keys, even if "
                    "server.cors_origins names them: set a key with --api-key"
                )
        elif need == "metrics" and not (caller.admin or caller.metrics):
            raise PermissionDenied("this route requires an admin API key, or a key with `metrics` in its settings")
        _count_request(request, need)
        if need == "admin":
            return
        if request.method == "POST":
            meter = request.scope[METER] = Meter(self._limits_of(caller.name), self._usage.of(caller.name))
            meter.admit()

    def caller_named(self, name: str) -> Caller | None:
        """The caller that a key of this name has now, for work that it left to the server. None if there is none."""
        if not self._keys:
            return ANONYMOUS_ADMIN if not name else None
        now = self._clock()
        return next((key.caller for key in self._keys if key.caller.name == name and not key.is_expired(now)), None)

    def _identify(self, request: Request) -> Caller:
        if (caller := request.scope.get(BATCH_CALLER)) is not None:
            assert isinstance(caller, Caller), "only the batch runner sets it"
            return caller
        if not self._keys:
            return ANONYMOUS_ADMIN
        address = request.client.host if request.client is not None else ""
        presented = request.headers.get("x-api-key") or ""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            presented = token.strip()
        if not presented:
            raise AuthenticationError("Invalid API Key: none was sent; send it as 'Authorization: Bearer KEY'")
        now = time.monotonic()
        if (wait := self._failures.wait(address, now)) > 0 and not self._failures.is_trusted(address):
            raise _too_many(wait)
        shown = digest(presented.encode("latin-1"))  # the bytes as they were sent
        # All keys are compared, so that the time does not depend on which one matches.
        found = [key for key in self._keys if hmac.compare_digest(shown, key.digest)]
        if not found or found[0].is_expired(self._clock()):
            if wait > 0:
                raise _too_many(wait)
            self._failures.count(address, now)
            if found:
                raise AuthenticationError(f"Invalid API Key: {found[0].caller.name!r} has expired; use its replacement")
            raise AuthenticationError("Invalid API Key: the server does not know it")
        self._failures.trust(address)
        return found[0].caller

    def _limits_of(self, name: str) -> Limits:
        return self._limits.setdefault(name, Limits(Rates(), time.monotonic()))


def _too_many(wait: float) -> TooManyFailures:
    return TooManyFailures(
        f"too many wrong API keys from this address: try again in {duration(wait)}", retry_after=wait
    )


def _count_request(request: Request, need: Need) -> None:
    """Count the request. Raises if too many requests of its kind are running."""
    entry: RequestEntry | None = request.scope.get(REQUEST_ENTRY)
    if entry is None:  # requests are not counted
        return
    route = route_of(request.scope)
    use: Use = "health" if route in HEALTH_PATHS else "watch" if route in _WATCHED else "request"
    entry.take("admin" if need == "admin" else use, owner_of(request), has_key=bool(caller_of(request).name))
