"""Who may ask: API keys, compared in constant time and kept as hashes only."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import Request

from paddock.errors import AuthenticationError, OriginNotAllowed, PermissionDenied, TooManyFailures
from paddock.gateway.auth.audit import AUDITED
from paddock.gateway.auth.caller import CALLER, NOBODY, Caller, caller_of, must_be_admin, owner_of
from paddock.gateway.auth.failed_keys import FailedKeys
from paddock.gateway.auth.keys import Key, digest
from paddock.gateway.auth.limits import Limits, Rates, duration
from paddock.gateway.auth.metering import METER, Meter
from paddock.gateway.auth.origin_guard import FOREIGN
from paddock.gateway.auth.permissions import Need
from paddock.gateway.auth.usage import UsageBook
from paddock.gateway.http.connection_slots import PLACE, Place, Use
from paddock.gateway.ops.metrics.http import route_of

_HEALTH = frozenset({"/health", "/v1/health", "/metrics"})
_WATCHED = frozenset({"/models/sse", "/live"})


class Gate:
    """A FastAPI dependency of every route, which lets a request through or raises. Without keys everybody may ask."""

    def __init__(self, keys: list[Key], usage: UsageBook, clock: Callable[[], float] = time.time) -> None:
        """`clock` tells the seconds since 1970, by which keys expire."""
        self._clock = clock
        self._failures = FailedKeys()
        self._keys: list[Key] = []
        self._usage = usage
        self._limits: dict[str, Limits] = {}
        self._needs: Mapping[Any, Need] = {}
        self.replace(keys)

    def guard(self, needs: Mapping[Any, Need]) -> None:
        """What each endpoint asks for."""
        self._needs = needs

    @property
    def has_keys(self) -> bool:
        return bool(self._keys)

    def replace(self, keys: list[Key]) -> None:
        """From now on these are the keys. Who has been let in stays, and what a name has used is not forgotten."""
        now = time.monotonic()
        self._keys = keys
        for key in keys:
            self._limits_of(key.caller.name).change(key.rates, now)
            self._usage.of(key.caller.name)

    def still_admits(self, caller: Caller) -> bool:
        """Whether somebody who was let in would be let in as the same again."""
        if not self._keys:
            return caller is NOBODY
        now = self._clock()
        return any(key.caller == caller and not key.is_expired(now) for key in self._keys)

    async def __call__(self, request: Request) -> None:
        need = self._needs[request.scope["endpoint"]]
        if need == "open":
            _take_place(request, need)
            return
        if need == "admin" and request.method != "GET":
            request.scope[AUDITED] = {}  # also where the key is refused
        request.scope[CALLER] = caller = self._identify(request)
        if need == "admin":
            must_be_admin(request)
            self._refuse_foreign_page(request)
        elif need == "metrics" and not (caller.admin or caller.metrics):
            raise PermissionDenied("this needs an admin's API key, or one with `metrics` in its settings")
        _take_place(request, need)
        if need == "admin":
            return
        if request.method == "POST":
            meter = request.scope[METER] = Meter(self._limits_of(caller.name), self._usage.of(caller.name))
            meter.admit()

    def _refuse_foreign_page(self, request: Request) -> None:
        """Pages that `cors_origins` names may ask models. To change things for others they have to know a key."""
        if not self._keys and FOREIGN in request.scope:
            raise OriginNotAllowed(
                "pages from elsewhere may not use this route on a server without API keys, even if server.cors_origins "
                "names them: set a key with --api-key"
            )

    def _identify(self, request: Request) -> Caller:
        if not self._keys:
            return NOBODY
        address = request.client.host if request.client is not None else ""
        presented = request.headers.get("x-api-key") or ""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            presented = token.strip()
        if not presented:
            raise AuthenticationError("an API key is required: send it as 'Authorization: Bearer KEY'")
        now = time.monotonic()
        if (wait := self._failures.wait(address, now)) > 0 and not self._failures.is_trusted(address):
            raise _too_many(wait)
        shown = digest(presented.encode("latin-1"))  # of the bytes as they came
        # Every key is compared, so that the time taken tells nothing about which one was near.
        found = [key for key in self._keys if hmac.compare_digest(shown, key.digest)]
        if not found or found[0].is_expired(self._clock()):
            if wait > 0:
                raise _too_many(wait)
            self._failures.count(address, now)
            if found:
                raise AuthenticationError(f"the API key {found[0].caller.name!r} has expired: use its replacement")
            raise AuthenticationError("this API key is not known here")
        self._failures.trust(address)
        return found[0].caller

    def _limits_of(self, name: str) -> Limits:
        if name not in self._limits:
            self._limits[name] = Limits(Rates(), time.monotonic())
        return self._limits[name]


def _too_many(wait: float) -> TooManyFailures:
    return TooManyFailures(
        f"too many wrong API keys came from this address: try again in {duration(wait)}", retry_after=wait
    )


def _take_place(request: Request, need: Need) -> None:
    """Raises where there are too many requests under way for one more of this kind."""
    place: Place | None = request.scope.get(PLACE)
    if place is None:  # nobody counts
        return
    route = route_of(request.scope)
    use: Use = "health" if route in _HEALTH else "watch" if route in _WATCHED else "request"
    place.take("admin" if need == "admin" else use, owner_of(request), has_key=bool(caller_of(request).name))
