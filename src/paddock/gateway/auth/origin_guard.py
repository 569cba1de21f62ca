"""Refuses requests that a browser sends for web pages of other origins, unless the settings allow the origin.

A browser sends requests for any page, also to servers that only its machine can reach. `Origin` and `Sec-Fetch-Site`
name the page, so requests of other origins are refused, whether or not the page could read the answer. DNS rebinding
makes a page look like one of this server: its host name resolves to this machine. A page knows no API key, so a server
without keys, and a server that only its own machine can reach, refuses host names that another person could register.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterable
from functools import lru_cache

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from paddock.config import ServerSettings
from paddock.errors import HostNotAllowed, OriginNotAllowed, PaddockError
from paddock.gateway.auth.cross_origin import Origins
from paddock.gateway.http.responses import error_response
from paddock.gateway.http.scope import FOREIGN
from paddock.hosts import is_address

_AUTHORITY = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\[\]:]*)(?::(?P<port>\d*))?")
_DEFAULT_PORTS = {"http": "80", "https": "443"}


class OriginGuard:
    def __init__(self, app: ASGIApp, settings: ServerSettings, origins: Origins, has_keys: Callable[[], bool]) -> None:
        self._app = app
        self._origins = origins
        self._hosts = frozenset(host.lower().rstrip(".") for host in settings.allowed_hosts)
        self._own_names = own_names(settings.hosts, socket.gethostname())
        self._is_ours = lru_cache(maxsize=256)(self._answers_to)
        self._always_check = bool(self._hosts) or settings.is_local
        self._has_keys = has_keys
        # A DNS lookup may take seconds.
        threading.Thread(target=self._learn_full_name, daemon=True).start()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(scope) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
        else:
            await error_response(problem, scope)(scope, receive, send)

    def _problem(self, scope: Scope) -> PaddockError | None:
        headers = Headers(scope=scope)
        host = headers.get("host")
        if self._checks_host() and host is not None and not self._is_ours(host):
            return HostNotAllowed(
                f"the host name {host[:200]!r} is not allowed: add it to server.allowed_hosts (--allowed-hosts)"
            )
        origin = headers.get("origin")
        if origin is None:
            return self._refuse_without_origin(headers, scope["method"])
        if _same(origin, headers):
            return None
        if self._origins.allow(origin):
            scope[FOREIGN] = True
            return None
        return OriginNotAllowed(
            f"web pages of {origin[:200]} are not allowed: add the origin to server.cors_origins (--cors-origins)"
        )

    def _learn_full_name(self) -> None:
        self._own_names |= own_names([], socket.getfqdn())
        self._is_ours.cache_clear()

    def _checks_host(self) -> bool:
        return "*" not in self._hosts and (self._always_check or not self._has_keys())

    def _refuse_without_origin(self, headers: Headers, method: str) -> PaddockError | None:
        """Pages can send images, scripts and forms without an Origin header. Following a link is harmless."""
        site = headers.get("sec-fetch-site", "none")
        if site in ("none", "same-origin") or self._origins.allow_all:
            return None
        if method in ("GET", "HEAD") and headers.get("sec-fetch-mode") == "navigate":
            return None
        return OriginNotAllowed("web pages of other origins are not allowed: see server.cors_origins (--cors-origins)")

    def _answers_to(self, authority: str) -> bool:
        """Whether the host is this machine. An address, or a name without a dot, cannot be registered in DNS."""
        match = _AUTHORITY.fullmatch(authority.lower())
        if match is None:
            return False
        name = match["host"].rstrip(".")
        return (
            "." not in name
            or name.endswith(".localhost")
            or name in self._own_names
            or is_address(name)
            or any(
                name == host or (host.startswith("*.") and name.endswith(host.removeprefix("*")))
                for host in self._hosts
            )
        )


def own_names(hosts: Iterable[str], machine: str) -> frozenset[str]:
    """The names of this machine: its listening addresses, its host name, and its multicast DNS name."""
    machine = machine.lower().rstrip(".")
    listening = {host.lower().rstrip(".") for host in hosts}
    return frozenset({*listening, machine, f"{machine.partition('.')[0]}.local"} - {"", ".local"})


def _same(origin: str, headers: Headers) -> bool:
    """Whether a page comes from this server. Behind a proxy the public name may be in another header, which a page of
    another origin cannot set without a preflight request. The scheme may be the proxy's too.
    """
    scheme, _, authority = origin.lower().partition("://")
    default = _DEFAULT_PORTS.get(scheme)
    if default is None:
        return False
    here = (headers.get("host"), headers.get("x-forwarded-host"))
    return any(_joined(authority, default) == _joined(name.lower(), default) for name in here if name)


def _joined(authority: str, default_port: str) -> tuple[str, str] | None:
    match = _AUTHORITY.fullmatch(authority)
    return (match["host"], match["port"] or default_port) if match is not None else None
